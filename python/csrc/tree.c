/* SPDX-License-Identifier: Apache-2.0 */

#include "tree.h"

static void children(slot_node n, slot_node *left, slot_node *right) {
	int64_t half = 1;
	while (half * 2 < n.end - n.first)
		half *= 2;
	*left = (slot_node){n.first, n.first + half};
	*right = (slot_node){n.first + half, n.end};
}

int tree_max_cover(int64_t slots) {
	int depth = 0;
	while ((int64_t)1 << depth < slots)
		depth++;
	return depth == 0 ? 1 : 2 * depth;
}

bool tree_merge(int64_t slots, slot_node left, slot_node right, slot_node *sum) {
	if (left.end != right.first)
		return false;
	slot_node n = {0, slots};
	while (n.end - n.first > 1) {
		slot_node l, r;
		children(n, &l, &r);
		if (l.first == left.first && l.end == left.end && r.first == right.first && r.end == right.end) {
			*sum = n;
			return true;
		}
		if (left.first >= l.first && right.end <= l.end)
			n = l;
		else if (left.first >= r.first && right.end <= r.end)
			n = r;
		else
			return false;
	}
	return false;
}

static int cover(slot_node n, slot_node range) {
	if (range.first <= n.first && n.end <= range.end)
		return 1;
	if (range.end <= n.first || n.end <= range.first)
		return 0;
	slot_node l, r;
	children(n, &l, &r);
	return cover(l, range) + cover(r, range);
}

int tree_cover(int64_t slots, slot_node range) {
	if (range.first < 0 || range.first >= range.end || range.end > slots)
		return 0;
	return cover((slot_node){0, slots}, range);
}
