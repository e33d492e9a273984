/* os_windows.c: os.h for Windows. */
#if defined(_WIN32)
#include "os.h"

#include <malloc.h>
#include <process.h>

/* --- threads --------------------------------------------------------------- */

void
la_mutex_init(la_mutex *mutex)
{
    InitializeSRWLock(mutex);
}

void
la_condition_init(la_condition *condition)
{
    InitializeConditionVariable(condition);
}

void
la_mutex_lock(la_mutex *mutex)
{
    AcquireSRWLockExclusive(mutex);
}

void
la_mutex_unlock(la_mutex *mutex)
{
    ReleaseSRWLockExclusive(mutex);
}

int
la_mutex_try(la_mutex *mutex)
{
    return TryAcquireSRWLockExclusive(mutex);
}

void
la_condition_wait(la_condition *condition, la_mutex *mutex)
{
    SleepConditionVariableSRW(condition, mutex, INFINITE, 0);
}

int
la_condition_wait_ms(la_condition *condition, la_mutex *mutex, int ms)
{
    return !SleepConditionVariableSRW(condition, mutex, (DWORD)ms, 0);
}

void
la_condition_wake_all(la_condition *condition)
{
    WakeAllConditionVariable(condition);
}

static unsigned __stdcall
run(void *work)
{
    ((void (*)(void))work)();
    return 0;
}

int
la_threads_start(void (*work)(void), int have, int count)
{
    while (have < count) {
        const uintptr_t thread = _beginthreadex(NULL, 0, run, (void *)work, 0, NULL);
        if (thread == 0) {
            break;
        }
        CloseHandle((HANDLE)thread); /* the thread continues */
        have++;
    }
    return have;
}

/* Windows already wakes threads on idle CPUs. */
void
la_threads_avoid_caller(int count)
{
    (void)count;
}

/* Windows has no fork. */
void
la_at_fork(void (*before)(void), void (*in_parent)(void), void (*in_child)(void))
{
    (void)before, (void)in_parent, (void)in_child;
}

long
la_cpu_count(void)
{
    DWORD_PTR mine, all;
    /* The mask is 0 if the process uses several groups of 64 CPUs. */
    if (GetProcessAffinityMask(GetCurrentProcess(), &mine, &all) && mine != 0) {
        return __builtin_popcountll(mine);
    }
    return (long)GetActiveProcessorCount(ALL_PROCESSOR_GROUPS);
}

/* --- time and memory ------------------------------------------------------- */

int
la_permit_amx(void)
{
    return 0;
}

int64_t
la_clock_ms(void)
{
    return (int64_t)GetTickCount64();
}

int64_t
la_clock_us(void)
{
    LARGE_INTEGER now, frequency;
    QueryPerformanceCounter(&now);
    QueryPerformanceFrequency(&frequency);
    return (int64_t)((double)now.QuadPart * 1e6 / (double)frequency.QuadPart);
}

long
la_preemptions(void)
{
    return 0;
}

void
la_sleep_us(long us)
{
    Sleep((DWORD)(us / 1000)); /* 0: lets another thread run */
}

void *
la_aligned_take(size_t alignment, size_t bytes)
{
    return _aligned_malloc(bytes, alignment);
}

void
la_aligned_give(void *memory)
{
    _aligned_free(memory);
}

#endif
