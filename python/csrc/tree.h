/* SPDX-License-Identifier: Apache-2.0
 *
 * The fixed binary tree over the slots of a step, in whose shape gradients are summed whatever rank holds which slot. A
 * node with n leaves splits at the largest power of two below n.
 */
#ifndef PHALANX_CSRC_TREE_H
#define PHALANX_CSRC_TREE_H

#include <stdbool.h>
#include <stdint.h>

/* slot_node is the contiguous range of slots below a node: first ≤ slot < end. */
typedef struct {
	int64_t first, end;
} slot_node;

/* tree_max_cover bounds how many nodes cover any range of slots. */
int tree_max_cover(int64_t slots);
/* tree_merge joins neighbouring nodes that are the children of one node, and says whether they were. */
bool tree_merge(int64_t slots, slot_node left, slot_node right, slot_node *sum);
/* tree_cover is the number of nodes whose leaves are exactly the slots of a range. */
int tree_cover(int64_t slots, slot_node range);

#endif
