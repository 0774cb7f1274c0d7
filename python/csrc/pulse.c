/* SPDX-License-Identifier: Apache-2.0
 *
 * The pulse: a killed process is reported to who waits for it after its memory was unmapped,
 * seconds later if it is large. A robust futex is marked before that, by each thread that ends.
 */

#include <errno.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "client.h"

/* The kernel's struct robust_list_head with its only entry. */
typedef struct {
	void *next;    /* address of entry */
	long offset;   /* from an entry to its futex */
	void *pending;
	void *entry;   /* address of next: the end of the list */
} robust_list;

static void *pulse(void *arg) {
	phx_client *c = arg;
	robust_list list;
	void *before = NULL;
	size_t before_bytes = 0;
	uint32_t *word = (uint32_t *)WORD(c, T_PULSE);
	int thread = (int)syscall(SYS_gettid);
	/* It must run soon after a kill, among threads that compute. It may be refused, and then it runs in its turn. */
	setpriority(PRIO_PROCESS, (id_t)thread, -5);
	memset(&list, 0, sizeof list);
	list.next = &list.entry;
	list.entry = &list.next;
	list.offset = (long)((char *)word - (char *)&list.entry);
	syscall(SYS_get_robust_list, 0, &before, &before_bytes);
	if (syscall(SYS_set_robust_list, &list, 3 * sizeof(void *)) != 0) {
		note(c, "WARNING the end of this process will be seen later than it could: set_robust_list: %s", strerror(errno));
		return NULL;
	}
	__atomic_store_n(word, (uint32_t)thread | FUTEX_WAITERS, __ATOMIC_SEQ_CST); /* as if one waited: the kernel wakes at the end */
	while (__atomic_load_n(&c->pulse_over, __ATOMIC_SEQ_CST) == 0)
		syscall(SYS_futex, &c->pulse_over, FUTEX_WAIT, 0, NULL, NULL, 0);
	__atomic_store_n(word, 0, __ATOMIC_SEQ_CST);
	syscall(SYS_set_robust_list, before, before_bytes);
	return NULL;
}

int phx_start_pulse(phx_client *c) {
	if (c->words == NULL || c->alone || c->pulse)
		return fail(c, PHX_E_ILLEGAL, "pulse: attach to a daemon's page first, once");
	if (thread_start(&c->pulse_thread, pulse, c) != 0)
		return fail(c, PHX_E_MEMORY, "pulse: no thread can be started");
	c->pulse = true;
	return 0;
}

void end_pulse(phx_client *c) {
	if (!c->pulse)
		return;
	__atomic_store_n(&c->pulse_over, 1, __ATOMIC_SEQ_CST);
	syscall(SYS_futex, &c->pulse_over, FUTEX_WAKE, 1, NULL, NULL, 0);
	pthread_join(c->pulse_thread, NULL);
	c->pulse = false;
}
