/* A clock that is off: preloaded, it shifts CLOCK_REALTIME of a process. CLOCK_MONOTONIC and CLOCK_BOOTTIME stay.
 *
 * LAKEMQ_TEST_CLOCK names a file of 8 bytes: by how many milliseconds (a signed number). It is mapped, so that a
 * change counts at once, in all processes that have the file. Times that the kernel gives to files are not shifted.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const int64_t NOT_SHIFTED = 0;
static const volatile int64_t *shift_ms = &NOT_SHIFTED;
static int (*real_clock_gettime)(clockid_t, struct timespec *);
static int (*real_sem_timedwait)(sem_t *, const struct timespec *);

__attribute__((constructor)) static void begin(void) {
    real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    real_sem_timedwait = dlsym(RTLD_NEXT, "sem_timedwait");
    const char *name = getenv("LAKEMQ_TEST_CLOCK");
    int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *mapped = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (mapped != MAP_FAILED)
        shift_ms = mapped;
}

static struct timespec shifted(struct timespec at, int64_t by_ms) {
    int64_t ns = at.tv_nsec + (by_ms % 1000) * 1000000;
    at.tv_sec += by_ms / 1000 + (ns >= 1000000000) - (ns < 0);
    at.tv_nsec = ns < 0 ? ns + 1000000000 : ns % 1000000000;
    return at;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (!real_clock_gettime) /* of a constructor that ran before ours */
        real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real_clock_gettime(clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        *now = shifted(*now, *shift_ms);
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec at;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &at))
        return -1;
    now->tv_sec = at.tv_sec;
    now->tv_usec = at.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *where) {
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    if (where)
        *where = at.tv_sec;
    return at.tv_sec;
}

/* A wait until a time of this clock, which the kernel knows unshifted. */
int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict until) {
    struct timespec at = shifted(*until, -*shift_ms);
    return real_sem_timedwait(semaphore, &at);
}
