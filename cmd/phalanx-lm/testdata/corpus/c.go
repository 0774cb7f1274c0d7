package corpus

// fold adds the leaves of a tree, the left half first.
func fold(leaves []float32) float32 {
	if len(leaves) == 1 {
		return leaves[0]
	}
	half := 1
	for half*2 < len(leaves) {
		half *= 2
	}
	return fold(leaves[:half]) + fold(leaves[half:])
}
