/* SPDX-License-Identifier: Apache-2.0
 *
 * What a trainer registers: checked, copied, and placed in segment and slab.
 */

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"

static int64_t align64(int64_t n) { return (n + 63) & ~(int64_t)63; }

/* plan_segment places the buffers. While slots are folded in order, the finished nodes are the cover of a range, so a fold
 * needs one buffer more than the largest cover. */
static segment_plan plan_segment(const phx_config *f) {
	int cover = tree_max_cover(f->slots);
	segment_plan p = {.buffers = cover + 1, .count_buffers = cover};
	p.stride = align64(4 * f->gradient_elements);
	p.count_stride = align64(8 * f->count_elements);
	p.out = p.buffers * p.stride;
	p.counts = p.out + p.stride;
	p.count_out = p.counts + p.count_buffers * p.count_stride;
	p.extra = p.count_out + p.count_stride;
	p.bytes = p.extra + align64(f->extra_bytes);
	return p;
}

static int dtype_bytes(const char *name) {
	static const struct {
		const char *name;
		int bytes;
	} dtypes[] = {
		{"f64", 8}, {"f32", 4}, {"f16", 2}, {"bf16", 2}, {"f8_e4m3fn", 1}, {"f8_e5m2", 1}, {"f8_e4m3fnuz", 1}, {"f8_e5m2fnuz", 1},
		{"f8_e8m0fnu", 1}, {"c64", 8}, {"c128", 16}, {"i64", 8}, {"i32", 4}, {"i16", 2}, {"i8", 1}, {"u64", 8}, {"u32", 4},
		{"u16", 2}, {"u8", 1}, {"bool", 1},
	};
	for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
		if (strcmp(dtypes[i].name, name) == 0)
			return dtypes[i].bytes;
	return 0;
}

static uint64_t fnv(uint64_t h, const void *data, size_t n) {
	const uint8_t *p = data;
	for (size_t i = 0; i < n; i++)
		h = (h ^ p[i]) * 0x100000001b3u;
	return h;
}

static uint64_t fnv_ints(uint64_t h, const int64_t *numbers, int n) {
	char text[24];
	for (int i = 0; i < n; i++)
		h = fnv(h, text, (size_t)snprintf(text, sizeof text, i == 0 ? "%" PRId64 : ",%" PRId64, numbers[i]));
	return h;
}

/* layout_slab places the tensors after the slab's header and hashes how they are described. */
static int layout_slab(phx_client *c) {
	uint64_t h = 0xcbf29ce484222325u;
	int64_t at = PHALANX_SLAB_HEADER_BYTES;
	for (int64_t i = 0; i < c->tensor_count; i++) {
		const phx_tensor *t = &c->tensors[i];
		__int128 size = dtype_bytes(t->dtype);
		if (size == 0)
			return fail(c, PHX_E_ARGUMENT, "tensor %s: dtype %s is unknown", t->name, t->dtype);
		for (int d = 0; d < t->dims; d++) {
			if (t->shape[d] < 0 || size * t->shape[d] > INT64_MAX)
				return fail(c, PHX_E_ARGUMENT, "tensor %s: dimension %d is %" PRId64, t->name, d, t->shape[d]);
			size *= t->shape[d];
		}
		if (size != t->bytes)
			return fail(c, PHX_E_ARGUMENT, "tensor %s has %" PRId64 " bytes, its shape of %s needs %" PRId64, t->name, t->bytes, t->dtype, (int64_t)size);
		if (size > INT64_MAX - PHALANX_TENSOR_ALIGN - at)
			return fail(c, PHX_E_ARGUMENT, "tensor %s: the state is larger than 63 bits count", t->name);
		c->slab_offsets[i] = at;
		at = align64(at + (int64_t)size);
		h = fnv(h, t->name, strlen(t->name) + 1);
		h = fnv(h, t->dtype, strlen(t->dtype) + 1);
		h = fnv(fnv_ints(h, t->shape, t->dims), "", 1);
		if (t->global_shape != NULL) {
			h = fnv_ints(fnv(h, "of ", 3), t->global_shape, t->dims);
			h = fnv(fnv_ints(fnv(h, " at ", 4), t->global_offset, t->dims), "", 1);
		}
		if (t->per_rank)
			h = fnv(h, "per rank", 9);
	}
	c->slab_bytes = at;
	c->layout_hash = h;
	return 0;
}

static void *copy_of(const void *from, size_t bytes) {
	void *to = malloc(bytes > 0 ? bytes : 1);
	if (to != NULL)
		memcpy(to, from, bytes);
	return to;
}

/* copy_tensor takes what describes a tensor; the memory of its content stays the caller's. */
static bool copy_tensor(phx_tensor *t) {
	size_t numbers = sizeof(int64_t) * (size_t)t->dims;
	phx_tensor from = *t;
	t->name = copy_of(from.name, strlen(from.name) + 1);
	t->dtype = copy_of(from.dtype, strlen(from.dtype) + 1);
	t->shape = copy_of(from.shape, numbers);
	t->global_shape = from.global_shape == NULL ? NULL : copy_of(from.global_shape, numbers);
	t->global_offset = from.global_shape == NULL ? NULL : copy_of(from.global_offset, numbers);
	return t->name != NULL && t->dtype != NULL && t->shape != NULL &&
		(from.global_shape == NULL || (t->global_shape != NULL && t->global_offset != NULL));
}

void release(phx_client *c) {
	for (int64_t i = 0; i < c->tensor_count; i++) {
		phx_tensor *t = &c->tensors[i];
		free((void *)t->name);
		free((void *)t->dtype);
		free((void *)t->shape);
		free((void *)t->global_shape);
		free((void *)t->global_offset);
	}
	free(c->tensors);
	free(c->slab_offsets);
	free(c->digests);
	pthread_mutex_destroy(&c->progress_lock);
	pthread_mutex_destroy(&c->state_lock);
	pthread_mutex_destroy(&c->ring_lock);
	pthread_mutex_destroy(&c->notes_lock);
	free(c);
}

static int same_name(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

static int check_names(phx_client *c) {
	const char **names = malloc(sizeof(char *) * (size_t)(c->tensor_count + 1));
	if (names == NULL)
		return fail(c, PHX_E_MEMORY, "no memory for the names of %" PRId64 " tensors", c->tensor_count);
	for (int64_t i = 0; i < c->tensor_count; i++)
		names[i] = c->tensors[i].name;
	qsort(names, (size_t)c->tensor_count, sizeof(char *), same_name);
	int r = 0;
	for (int64_t i = 1; i < c->tensor_count && r == 0; i++)
		if (strcmp(names[i - 1], names[i]) == 0)
			r = fail(c, PHX_E_ARGUMENT, "two tensors are called %s", names[i]);
	free(names);
	return r;
}

int phx_create(const phx_config *config, const phx_tensor *tensors, int64_t count, phx_client **out) {
	phx_client *c = calloc(1, sizeof *c);
	*out = c;
	if (c == NULL)
		return PHX_E_MEMORY;
	c->config = *config;
	c->orphan_after = ORPHAN_AFTER_NS;
	pthread_mutex_init(&c->progress_lock, NULL);
	pthread_mutex_init(&c->state_lock, NULL);
	pthread_mutex_init(&c->ring_lock, NULL);
	pthread_mutex_init(&c->notes_lock, NULL);
	if (config->slots <= 0 || config->slots > 1 << 24)
		return fail(c, PHX_E_ARGUMENT, "%" PRId64 " slots; give 1 to %d", config->slots, 1 << 24);
	const int64_t most = (int64_t)1 << 56; /* a gradient of which 50 buffers still have addresses */
	if (config->gradient_elements < 0 || config->count_elements < 0 || config->extra_bytes < 0 || config->gradient_elements > most / 64 ||
		config->count_elements > most / 64 || config->extra_bytes > most)
		return fail(c, PHX_E_ARGUMENT, "sizes: %" PRId64 " gradient elements, %" PRId64 " counts, %" PRId64 " extra bytes", config->gradient_elements,
			config->count_elements, config->extra_bytes);
	c->plan = plan_segment(config);
	c->tensors = malloc(sizeof(phx_tensor) * (size_t)(count + 1));
	c->slab_offsets = calloc((size_t)(count + 1), sizeof(int64_t));
	if (c->tensors == NULL || c->slab_offsets == NULL)
		return fail(c, PHX_E_MEMORY, "no memory for %" PRId64 " tensors", count);
	for (int64_t i = 0; i < count; i++) {
		c->tensors[i] = tensors[i];
		c->tensor_count = i + 1;
		if (!copy_tensor(&c->tensors[i]))
			return fail(c, PHX_E_MEMORY, "no memory for %" PRId64 " tensors", count);
	}
	int r = check_names(c);
	return r != 0 ? r : layout_slab(c);
}
