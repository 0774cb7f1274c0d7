// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"phalanx"
	"phalanx/ckpt"
	"phalanx/ckpt/convert"
	"phalanx/ckpt/view"
	"phalanx/node"
)

// convertVerb is convert and restore: they differ in how their source is named.
type convertVerb struct {
	viewer
	to        string
	selection convert.Selection
	renames   []string
	shardSize string
	layout    string
	partial   bool
	dryRun    bool
	rewrite   bool
	tie       bool
}

// converted is the answer.
type converted struct {
	Source string `json:"source"`
	Place  string `json:"place"`
	Format string `json:"format"`
	convert.Result
	DryRun bool       `json:"dry_run,omitempty"`
	Cost   *view.Cost `json:"cost,omitempty"` // of a dry run
	// OverRead is the ratio of what a dry run says is read to what is needed.
	OverRead float64  `json:"over_read,omitempty"`
	Against  *against `json:"against,omitempty"`
}

func newCkptConvert(a *app) *cobra.Command {
	r := &convertVerb{viewer: viewer{reader: reader{app: a}}}
	c := &cobra.Command{
		Use: "convert SRC DST", Args: cobra.ExactArgs(2),
		Short: "Write a checkpoint of any kind as another format",
		Long: `Write a checkpoint of any kind as another format, in constant memory. SRC is what inspect takes. DST is a folder
that does not exist yet, a file that ends with .safetensors, or a URL below which nothing is. Nothing has its final name until all of it was written
and verified.`,
		Example: "  phalanx ckpt convert /ckpt/job model.safetensors --only 'model.*' --dtype bf16",
		RunE:    interruptible(r.run),
	}
	r.bind(c)
	c.Flags().StringVar(&r.to, "to", "", "format of DST: dcp, safetensors or raw (default: safetensors when DST ends with .safetensors, else dcp)")
	c.Flags().BoolVar(&r.rewrite, "rewrite-metadata", false, "copy the data files of a DCP checkpoint as they are and write only its .metadata anew, so that PyTorch before 2.15 reads it (default when both are dcp and nothing is selected)")
	return c
}

func newCkptRestore(a *app) *cobra.Command {
	r := &convertVerb{viewer: viewer{reader: reader{app: a}}}
	c := &cobra.Command{
		Use: "restore REF DEST", Args: cobra.ExactArgs(2),
		Short: "Write the tensors of a published checkpoint into a folder, verified",
		Long: `Write the tensors of a checkpoint into a folder that does not exist yet. REF is latest, a step, a folder of the job's
store, or a path or URL. Names, dtypes and shapes are compared with --layout, in both directions, before anything is
written.`,
		Example: "  phalanx ckpt restore latest /scratch/start --dir /tmp/first --as safetensors",
		RunE:    interruptible(r.run),
	}
	r.bind(c)
	c.Flags().StringVar(&r.to, "as", "", "format of DEST: dcp, safetensors or raw (default: safetensors when DEST ends with .safetensors, else dcp)")
	return c
}

// bind declares the flags that both verbs have.
func (r *convertVerb) bind(c *cobra.Command) {
	r.viewer.bind(c)
	f := c.Flags()
	f.StringArrayVar(&r.selection.Only, "only", nil, "only tensors whose names match `GLOB`, in which * is any text; may be repeated")
	f.StringArrayVar(&r.renames, "rename", nil, "`FROM=TO`: a tensor, or with a dot at the end of FROM all whose names begin with it; may be repeated")
	f.BoolVar(&r.selection.Strip, "strip-prefixes", false, `remove what wrappers put into names: "module." and "_orig_mod."`)
	f.StringVar(&r.selection.DType, "dtype", "", "cast floating-point tensors to `DTYPE`, such as bf16; without it none is cast")
	f.StringVar(&r.shardSize, "shard-size", "", "about how large a file becomes, such as 5GB or 256MiB (default: 5GiB for safetensors, 256MiB for dcp)")
	f.BoolVar(&r.tie, "tie", false, "write tensors that share their stored bytes once, and name the others in the metadata of safetensors")
	f.StringVar(&r.layout, "layout", "", "what is wanted: another checkpoint or a JSON file at `PATH`; differences in names, dtypes or shapes end with 8 and nothing is written")
	f.BoolVar(&r.partial, "partial", false, "with --layout: tensors may be missing on either side")
	f.BoolVar(&r.dryRun, "dry-run", false, "say what would be read and written, and do not")
}

func (r *convertVerb) run(c *cobra.Command, args []string) error {
	ctx := c.Context()
	to, shard, err := r.settle(args[1])
	if err != nil {
		return err
	}
	v, err := r.view(c, args[0])
	if err != nil {
		return err
	}
	answer := converted{Source: v.Place, Place: args[1], Format: string(to), DryRun: r.dryRun}
	if r.rewriting(v, to) {
		return r.runRewrite(ctx, v, &answer)
	}
	items, err := convert.Select(v, r.selection)
	if err != nil {
		return convertError(err)
	}
	if err := r.compare(c, items, &answer); err != nil {
		return err
	}
	options := convert.Options{To: to, ShardBytes: shard, Tie: r.tie}
	if r.dryRun {
		cost, err := dryRun(ctx, v, items)
		if err != nil {
			return viewError(err)
		}
		answer.Cost, answer.OverRead = &cost, cost.OverRead()
		answer.Tensors, answer.Bytes = len(items), bytesOf(items)
		return r.say(&answer)
	}
	target, err := r.target(ctx, args[1], to, &options)
	if err != nil {
		return err
	}
	p := r.progress("writing")
	options.Progress = p.update
	// What is read and written passes through: garbage is better collected early than kept.
	defer debug.SetGCPercent(debug.SetGCPercent(50))
	answer.Result, err = convert.Run(ctx, v, items, target, options)
	p.end()
	if err != nil {
		return convertError(err)
	}
	return r.say(&answer)
}

// convertError is viewError for what can be wrong with a selection or a target.
func convertError(err error) error {
	switch {
	case errors.Is(err, convert.ErrClash):
		return problem(node.CodeUsage, "rename one of them with --rename, or leave it out with --only", "%w", err)
	case errors.Is(err, convert.ErrName):
		return problem(node.CodeUsage, "rename it to something, or leave it out with --only", "%w", err)
	case errors.Is(err, convert.ErrOccupied):
		return problem(node.CodeUsage, "name a place where nothing is; what is there is left alone", "%w", err)
	case errors.Is(err, convert.ErrFormat):
		return problem(codeIncompatible, "leave tensors out with --only, rename them with --rename, or choose another format", "%w", err)
	}
	return viewError(err)
}

// settle reads the flags that name a format and a size.
func (r *convertVerb) settle(dst string) (view.Format, int64, error) {
	to := view.Format(r.to)
	switch to {
	case "":
		if to = view.DCP; strings.HasSuffix(dst, convert.FileSuffix) {
			to = view.Safetensors
		}
	case view.DCP, view.Safetensors, view.Raw:
	default:
		return "", 0, problem(node.CodeUsage, "give dcp, safetensors or raw", "format %q", r.to)
	}
	shard, err := parseSize(r.shardSize)
	if err != nil {
		return "", 0, problem(node.CodeUsage, "give a size such as 5GB or 256MiB", "--shard-size: %w", err)
	}
	for _, text := range r.renames {
		rename, err := convert.ParseRename(text)
		if err != nil {
			return "", 0, problem(node.CodeUsage, "such as --rename model.=", "%w", err)
		}
		r.selection.Renames = append(r.selection.Renames, rename)
	}
	if d := r.selection.DType; d != "" && phalanx.DTypeSize(d) == 0 {
		return "", 0, problem(node.CodeUsage, "dtypes are "+strings.Join(phalanx.DTypes(), ", "), "--dtype %q", d)
	}
	if err := convert.CheckCast(r.selection.DType); err != nil {
		return "", 0, problem(node.CodeUsage, "leave --dtype out, or give one of them", "--dtype: %w", err)
	}
	if r.tie && to != view.Safetensors {
		return "", 0, problem(node.CodeUsage, "leave it out: "+string(to)+" writes every tensor by itself", "--tie is for safetensors, not %s", to)
	}
	return to, shard, nil
}

// parseSize reads a size in bytes; "" is 0.
func parseSize(text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	number := strings.TrimRight(text, "KMGTiB")
	factor, known := map[string]int64{
		"": 1, "B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
	}[text[len(number):]]
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || !known || n <= 0 || n > math.MaxInt64/2/factor {
		return 0, fmt.Errorf("size %q", text)
	}
	return n * factor, nil
}

// rewriting decides whether only the index of a DCP checkpoint is written anew.
func (r *convertVerb) rewriting(v *view.View, to view.Format) bool {
	s := r.selection
	plain := len(s.Only) == 0 && len(s.Renames) == 0 && !s.Strip && s.DType == "" && r.shardSize == "" && r.layout == "" && !r.dryRun
	return r.rewrite || v.Format == view.DCP && to == view.DCP && plain
}

func (r *convertVerb) runRewrite(ctx context.Context, v *view.View, answer *converted) error {
	if v.Format != view.DCP || answer.Format != string(view.DCP) {
		return problem(node.CodeUsage, "leave --rewrite-metadata out", "--rewrite-metadata is for a DCP checkpoint that stays one; this is %s to %s", v.Format, answer.Format)
	}
	target, err := r.target(ctx, answer.Place, view.DCP, &convert.Options{})
	if err != nil {
		return err
	}
	p := r.progress("copying")
	answer.Result, err = convert.Rewrite(ctx, v, target, p.update)
	p.end()
	if err != nil {
		return convertError(err)
	}
	return r.say(answer)
}

// compare reports how the selected tensors differ from what is wanted, before anything is touched.
func (r *convertVerb) compare(c *cobra.Command, items []convert.Item, answer *converted) error {
	if r.layout == "" {
		return nil
	}
	wanted, err := r.wanted(c, r.layout)
	if err != nil {
		return err
	}
	diff := view.Compare(convert.Layout(items), wanted)
	answer.Against = newAgainst(diff)
	if diff.Empty() || r.partial && len(diff.Changed) == 0 {
		if !diff.Empty() {
			printDiff(r.stderr, diff)
		}
		return nil
	}
	if r.asJSON {
		if err := r.printJSON(answer); err != nil {
			return err
		}
	} else {
		printDiff(r.stdout, diff)
	}
	hint := "choose and rename tensors with --only, --rename and --strip-prefixes, cast with --dtype"
	if len(diff.Changed) == 0 {
		hint += ", or allow it with --partial"
	}
	return problem(codeIncompatible, hint, "nothing was written: %d tensors missing, %d unexpected, %d changed", len(diff.Missing), len(diff.Unexpected), len(diff.Changed))
}

// target makes the place that is written to.
func (r *convertVerb) target(ctx context.Context, dst string, to view.Format, o *convert.Options) (convert.Target, error) {
	path, local := strings.CutPrefix(dst, "file://")
	var target convert.Target
	var err error
	switch {
	case !local && strings.Contains(dst, "://"):
		parent, name := view.Split(dst)
		if name == "" {
			return nil, problem(node.CodeUsage, "give a prefix, such as s3://BUCKET/PREFIX", "%s is a whole store", dst)
		}
		var s ckpt.Store
		if s, err = createStore(ctx, parent); err != nil {
			return nil, err
		}
		target, err = convert.NewPrefix(ctx, s, name, dst)
	case to == view.Safetensors && strings.HasSuffix(path, convert.FileSuffix):
		o.ShardBytes, o.Name = math.MaxInt64, filepath.Base(path) // one file is one file
		target, err = convert.NewFile(path)
	default:
		target, err = convert.NewFolder(path)
	}
	if errors.Is(err, convert.ErrOccupied) {
		return nil, problem(node.CodeUsage, "name a place where nothing is; what is there is left alone", "%w", err)
	}
	if err != nil {
		return nil, problem(node.CodeFailed, "check the path and its rights", "%w", err)
	}
	return target, nil
}

// dryRun sums up what is read.
func dryRun(ctx context.Context, v *view.View, items []convert.Item) (view.Cost, error) {
	tensors := make([]int, len(items))
	for k, it := range items {
		tensors[k] = it.Tensor
	}
	return v.StreamCost(ctx, tensors)
}

func bytesOf(items []convert.Item) int64 {
	var n int64
	for _, it := range items {
		n += it.Bytes()
	}
	return n
}

// say prints what was done.
func (r *convertVerb) say(x *converted) error {
	if r.asJSON {
		return r.printJSON(x)
	}
	if x.DryRun {
		err := tell(r.stdout, "would write %s, %d bytes, as %s to %s\nwould read %d bytes by %s, %.3f times what is needed\n", plural(x.Tensors, "tensor"),
			x.Bytes, x.Format, x.Place, x.Cost.Read, plural(x.Cost.Requests, "request"), x.OverRead)
		return err
	}
	for _, b := range x.Beyond {
		say(r.stdout, "beyond what %s holds: %s of %s\n", r.selection.DType, plural(int(b.Count), "number"), b.Name)
	}
	for _, name := range x.Tied {
		say(r.stdout, "tied to another one: %s\n", name)
	}
	for _, name := range x.LeftOut {
		say(r.stdout, "left out, for it is no tensor: %s\n", name)
	}
	err := tell(r.stdout, "%s: %s, %d bytes in %s, format %s\n", x.Place, plural(x.Tensors, "tensor"), x.Bytes, plural(x.Files, "file"), x.Format)
	return err
}
