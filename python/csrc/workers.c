/* SPDX-License-Identifier: Apache-2.0 */

#include "workers.h"

#include <sched.h>
#include <signal.h>

int thread_start(pthread_t *thread, void *(*run)(void *), void *arg) {
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int r = pthread_create(thread, NULL, run, arg);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return r;
}

int processors(void) {
	cpu_set_t set;
	int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
	return n < 1 ? 1 : n;
}

typedef struct {
	int64_t n, step, next;
	void (*part)(void *arg, int64_t first, int64_t end);
	void *arg;
} work;

static void *claim(void *at) {
	work *w = at;
	for (;;) {
		int64_t first = __atomic_fetch_add(&w->next, w->step, __ATOMIC_RELAXED);
		if (first >= w->n)
			return NULL;
		w->part(w->arg, first, first + w->step < w->n ? first + w->step : w->n);
	}
}

void for_each(int64_t n, int64_t step, int workers, void (*part)(void *arg, int64_t first, int64_t end), void *arg) {
	enum { most = 16 };
	work w = {n, step, 0, part, arg};
	pthread_t others[most];
	int started = 0;
	while (started < workers - 1 && started < most - 1 && thread_start(&others[started], claim, &w) == 0)
		started++;
	claim(&w);
	while (started > 0)
		pthread_join(others[--started], NULL);
}
