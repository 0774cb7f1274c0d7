/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PHALANX_CSRC_WORKERS_H
#define PHALANX_CSRC_WORKERS_H

#include <pthread.h>
#include <stdint.h>

/* thread_start starts a thread that no signal of the process is given to: they are for Python's. It returns 0 or an error number. */
int thread_start(pthread_t *thread, void *(*run)(void *), void *arg);

/* processors is how many this thread may use. */
int processors(void);

/* for_each calls part(arg, first, end) for ranges of at most step that cover 0 to n, on up to workers threads, this one included.
 * It returns when all have ended. */
void for_each(int64_t n, int64_t step, int workers, void (*part)(void *arg, int64_t first, int64_t end), void *arg);

#endif
