// SPDX-License-Identifier: Apache-2.0

package pickle

import (
	"fmt"
	"math"
	"slices"

	"phalanx"
)

// Tensor is a tensor as a pickle of torch.save describes it: a view of a storage whose bytes are elsewhere.
type Tensor struct {
	Storage      string // its key: the member data/KEY of the archive
	StorageBytes int64  // of the whole storage
	DType        string // one of phalanx.DTypes, "" when there is none for DTypeName
	DTypeName    string // PyTorch's own name, such as float32, and a property that cannot be read: then DType is ""
	Shape        []int
	Strides      []int // in elements, one for each dimension, not negative; 0 repeats
	Offset       int64 // of the first element in the storage, in elements
	PutOff       PutOff
	RequiresGrad bool
}

// rebuild is what the arguments of a function are by which PyTorch makes a tensor of its description.
type rebuild struct {
	least, most int
	dtype       int // place of the dtype, 0: that of the storage
	properties  int // place of a dict of further properties, which may be missing; 0: there is none
}

var rebuilds = map[Name]rebuild{
	{"torch._utils", "_rebuild_tensor"}:    {least: 4, most: 4},
	{"torch._utils", "_rebuild_tensor_v2"}: {least: 6, most: 7, properties: 6},
	{"torch._utils", "_rebuild_tensor_v3"}: {least: 7, most: 8, dtype: 6, properties: 7},
}

// wrappers are functions that take a tensor as their first argument and return it, marked.
var wrappers = []Name{
	{"torch._utils", "_rebuild_parameter"},
	{"torch._utils", "_rebuild_parameter_with_state"},
}

// fromType is how a tensor with a Python type of its own, or with attributes, is made: of a function and its arguments.
var fromType = Name{"torch._tensor", "_rebuild_from_type_v2"}

// TensorGlobal reports whether a global is part of how torch.save writes tensors, or the OrderedDict that state dicts are.
// It serves as Policy.KnownIn.
func TensorGlobal(module, name string) bool {
	key := Name{module, name}
	if _, ok := rebuilds[key]; ok || slices.Contains(wrappers, key) || key == fromType {
		return true
	}
	switch module {
	case "torch":
		return slices.ContainsFunc(torchTypes, func(t torchType) bool { return t.name == name || t.storage == name && name != "" }) || name == "Size"
	case "torch.storage":
		return name == "UntypedStorage" || name == "_UntypedStorage"
	case "collections":
		return name == "OrderedDict"
	}
	return false
}

// IsTensor reports whether a value describes a tensor, so that AsTensor makes one of it or says what is wrong with it.
func IsTensor(v any) bool {
	o, ok := v.(*Object)
	if !ok || !o.Known() {
		return false
	}
	key := Name{o.Global().Module, o.Global().Name}
	_, direct := rebuilds[key]
	return direct || slices.Contains(wrappers, key) || key == fromType
}

// AsTensor reads the description of a tensor, and checks that all its elements lie in its storage.
func AsTensor(v any) (*Tensor, error) {
	parameter := false // a parameter says itself whether it has a gradient, the tensor in it says no
	for range 4 {      // a parameter of a type of its own is wrapped twice
		o, ok := v.(*Object)
		if !ok || !IsTensor(v) {
			return nil, fmt.Errorf("%s is no tensor", Describe(v))
		}
		g := o.Global()
		key := Name{g.Module, g.Name}
		args, ok := o.Args.(*Tuple)
		if !ok {
			return nil, fmt.Errorf("%s is called with %s", g, Describe(o.Args))
		}
		if how, ok := rebuilds[key]; ok {
			if len(args.Items) < how.least || len(args.Items) > how.most {
				return nil, fmt.Errorf("%s is called with %d arguments, it has %d to %d", g, len(args.Items), how.least, how.most)
			}
			t, err := tensorOf(args.Items, how)
			if err == nil && parameter {
				t.RequiresGrad = true
			}
			return t, err
		}
		switch {
		case key == fromType && len(args.Items) >= 3:
			v = &Object{Class: args.Items[0], Args: args.Items[2], Offset: o.Offset}
		case key != fromType && len(args.Items) >= 1:
			v = args.Items[0]
			if len(args.Items) > 1 && args.Items[1] == any(true) {
				parameter = true
			}
		default:
			return nil, fmt.Errorf("%s is called with %d arguments", g, len(args.Items))
		}
	}
	return nil, fmt.Errorf("a tensor wrapped too often")
}

// tensorOf reads (storage, offset, shape, strides, requires_grad, hooks, dtype, properties) as far as a function has them.
func tensorOf(args []any, how rebuild) (*Tensor, error) {
	t, size, err := storageOf(args[0])
	if err != nil {
		return nil, err
	}
	if how.dtype > 0 {
		g, ok := args[how.dtype].(*Global)
		if !ok || g.Module != "torch" {
			return nil, fmt.Errorf("the dtype of a tensor is %s", Describe(args[how.dtype]))
		}
		t.DTypeName, t.DType = g.Name, DType(g.Name)
		size = phalanx.DTypeSize(t.DType)
	}
	offset, ok := args[1].(int64)
	if !ok || offset < 0 {
		return nil, fmt.Errorf("a tensor begins at %s in its storage", Describe(args[1]))
	}
	t.Offset = offset
	if t.Shape, err = Ints(args[2]); err != nil {
		return nil, fmt.Errorf("the shape of a tensor: %w", err)
	}
	if t.Strides, err = Ints(args[3]); err != nil {
		return nil, fmt.Errorf("the strides of a tensor: %w", err)
	}
	if len(args) > 4 {
		t.RequiresGrad, _ = args[4].(bool)
	}
	if err := t.check(size); err != nil {
		return nil, err
	}
	if how.properties > 0 && len(args) > how.properties {
		if err := t.putOff(args[how.properties]); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// storageOf reads ("storage", class, key, device, elements) and returns the size of an element by its class.
func storageOf(v any) (*Tensor, int, error) {
	id, ok := v.(*PersistentID)
	if !ok {
		return nil, 0, fmt.Errorf("a tensor of %s instead of a storage", Describe(v))
	}
	parts, ok := id.ID.(*Tuple)
	if !ok || len(parts.Items) < 5 || parts.Items[0] != any("storage") {
		return nil, 0, fmt.Errorf("a tensor of an unknown kind of storage")
	}
	class, ok := parts.Items[1].(*Global)
	key, ok2 := parts.Items[2].(string)
	n, ok3 := parts.Items[4].(int64)
	if !ok || !ok2 || !ok3 || n < 0 || n > math.MaxInt64/16 {
		return nil, 0, fmt.Errorf("a storage that is described by %s, %s and %s", Describe(parts.Items[1]), Describe(parts.Items[2]), Describe(parts.Items[4]))
	}
	t := &Tensor{Storage: key, StorageBytes: n}
	if class.Name == "UntypedStorage" || class.Name == "_UntypedStorage" { // counts bytes
		t.DTypeName, t.DType = "uint8", "u8"
		return t, 1, nil
	}
	i := slices.IndexFunc(torchTypes, func(k torchType) bool { return k.storage == class.Name })
	if i < 0 || class.Module != "torch" {
		return nil, 0, fmt.Errorf("a storage of the unknown class %s", class)
	}
	t.DTypeName, t.DType = torchTypes[i].name, torchTypes[i].dtype
	size := phalanx.DTypeSize(t.DType)
	t.StorageBytes *= int64(size)
	return t, size, nil
}

// check refuses a tensor that reaches beyond its storage, or whose size is beyond all numbers.
func (t *Tensor) check(size int) error {
	if len(t.Shape) != len(t.Strides) {
		return fmt.Errorf("a tensor with %d sizes and %d strides", len(t.Shape), len(t.Strides))
	}
	size = max(size, 1)
	last, elements := t.Offset, int64(1)
	for i, d := range t.Shape {
		if d < 0 || t.Strides[i] < 0 {
			return fmt.Errorf("a tensor with shape %v and strides %v", t.Shape, t.Strides)
		}
		if d == 0 {
			return nil
		}
	}
	for i, d := range t.Shape {
		if elements > math.MaxInt64/16/int64(d) {
			return fmt.Errorf("a tensor of shape %v", t.Shape)
		}
		elements *= int64(d)
		if d > 1 && t.Strides[i] > 0 {
			reach := int64(d - 1)
			if reach > (t.StorageBytes-last)/int64(t.Strides[i]) {
				return t.beyond()
			}
			last += reach * int64(t.Strides[i])
		}
	}
	if last >= t.StorageBytes/int64(size) {
		return t.beyond()
	}
	return nil
}

func (t *Tensor) beyond() error {
	return fmt.Errorf("a tensor of shape %v with strides %v, beginning at element %d, reaches beyond its storage of %d bytes", t.Shape, t.Strides, t.Offset, t.StorageBytes)
}

// Ints reads a tuple or list of integers, or a torch.Size of one.
func Ints(v any) ([]int, error) {
	if o, ok := v.(*Object); ok && o.Is("torch", "Size") {
		args, ok := o.Args.(*Tuple)
		if !ok || len(args.Items) != 1 {
			return nil, fmt.Errorf("a torch.Size of %s", Describe(o.Args))
		}
		v = args.Items[0]
	}
	var items []any
	switch v := v.(type) {
	case *Tuple:
		items = v.Items
	case *List:
		items = v.Items
	default:
		return nil, fmt.Errorf("%s instead of a tuple of integers", Describe(v))
	}
	n := make([]int, len(items))
	for i, item := range items {
		v, ok := item.(int64)
		if !ok || v != int64(int(v)) {
			return nil, fmt.Errorf("%s among integers", Describe(item))
		}
		n[i] = int(v)
	}
	return n, nil
}
