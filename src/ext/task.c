/* task.c: the one inner loop behind the ufuncs of tasks.def.
 *
 * Reads the operands off the signature and cuts the rows of each head into pieces.  A
 * row never depends on which piece it is in, so how many threads there are changes no
 * bit. */
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "task.h"

#include <stdlib.h>
#include <string.h>

#include "cpu.h"
#include "interrupt.h"
#include "modes.h"
#include "pool.h"
#include "scratch.h"

const struct la_task_row la_task_rows[LA_NTASKS] = {
#define LA_TASK(name, room, signature, nin, nout, piece, doc)                          \
    {#name, signature, nin, nout, piece, doc},
#include "../kernel/tasks.def"
};

struct job {
    struct la_interrupt interrupt;
    la_modes modes; /* the caller's */
    int (*run)(const struct la_task *);
    struct la_task task; /* of head 0 */
    ptrdiff_t outer[LA_TASK_OPERANDS];
    int operands;
    ptrdiff_t piece, pieces; /* rows of a piece, pieces of a head */
    char *scratch;
    size_t lane_bytes;
};

/* Strides of the operands, as the signature names their dimensions. */
static void
read_signature(struct job *job, const char *signature, const ptrdiff_t *steps)
{
    const ptrdiff_t *core = steps + job->operands;
    int operand = 0, axes = 0;
    for (const char *p = signature; *p != '\0'; p++) {
        if (*p == ')') {
            struct la_array *x = &job->task.x[operand++];
            /* A vector is a row. */
            x->rs = axes == 2 ? core[0] : 0;
            x->cs = axes > 0 ? core[axes - 1] : 0;
            core += axes;
            axes = 0;
        }
        else if (*p >= 'a' && *p <= 'z') {
            axes++;
        }
    }
}

/* Fills the job from a call; returns its number of heads. */
static size_t
read_call(struct job *job, const struct la_task_row *row, char **args,
          const ptrdiff_t *dimensions, const ptrdiff_t *steps)
{
    job->operands = row->nin + row->nout;
    for (int i = 0; i < job->operands; i++) {
        job->task.x[i].data = args[i];
    }
    if (row->signature == NULL) {
        job->task.dim[0] = dimensions[0];
        for (int i = 0; i < job->operands; i++) {
            job->task.x[i].rs = steps[i];
        }
        return 1;
    }
    char seen[128] = {0};
    int count = 0;
    for (const char *p = row->signature; *p != '\0'; p++) {
        if (*p >= 'a' && *p <= 'z' && !seen[(int)*p]) {
            seen[(int)*p] = 1;
            job->task.dim[count] = dimensions[1 + count];
            count++;
        }
    }
    memcpy(job->outer, steps, (size_t)job->operands * sizeof(*steps));
    read_signature(job, row->signature, steps);
    return (size_t)dimensions[0];
}

static int
run_piece(void *arg, size_t item, int lane)
{
    struct job *job = arg;
    const ptrdiff_t head = (ptrdiff_t)(item / (size_t)job->pieces);
    struct la_task task = job->task;
    for (int i = 0; i < job->operands; i++) {
        task.x[i].data += head * job->outer[i];
    }
    task.first = (ptrdiff_t)(item % (size_t)job->pieces) * job->piece;
    task.rows =
        task.dim[0] - task.first < job->piece ? task.dim[0] - task.first : job->piece;
    task.scratch = job->scratch + (size_t)lane * job->lane_bytes;
    task.poll = lane == 0 ? la_interrupt_caller : la_interrupt_worker;
    task.poll_arg = &job->interrupt;
    if (lane > 0) {
        la_modes_set(job->modes);
    }
    return task.poll(task.poll_arg) || job->run(&task);
}

static void
idle(void *arg)
{
    la_interrupt_look(&((struct job *)arg)->interrupt);
}

/* Work below this many numbers is done before a thread would have woken. */
#define WORTH_THREADS 1e5

static int
threads_for(const struct job *job, size_t heads, size_t items)
{
    double work = (double)heads;
    for (int i = 0; i < LA_TASK_DIMS && job->task.dim[i] > 0; i++) {
        work *= (double)job->task.dim[i];
    }
    const int threads = work < WORTH_THREADS ? 1 : la_pool_get_num_threads();
    return (size_t)threads < items ? threads : items > 0 ? (int)items : 1;
}

void
la_task_run(char **args, const ptrdiff_t *dimensions, const ptrdiff_t *steps,
            void *data)
{
    const struct la_task_loop *loop = data;
    const struct la_task_row *row = &la_task_rows[loop->task];
    const struct la_task_kernel *kernel = &la_cpu_table(loop->dtype)->tasks[loop->task];
    struct job job = {.run = kernel->run};
    const size_t heads = read_call(&job, row, args, dimensions, steps);
    const ptrdiff_t n = job.task.dim[0];
    job.piece = row->piece > 0 ? row->piece : n > 0 ? n : 1;
    job.pieces = row->piece > 0 ? (n + job.piece - 1) / job.piece : 1;
    const size_t items = heads * (size_t)job.pieces;
    if (items == 0 || la_interrupt_pending()) {
        return;
    }
    const int threads = threads_for(&job, heads, items);
    job.scratch = la_scratch_take(kernel->scratch(&job.task), threads, &job.lane_bytes);
    if (job.scratch == NULL) {
        la_interrupt_no_memory();
        return;
    }
    la_interrupt_start(&job.interrupt);

    /* Lanes beyond an edge may raise flags that no number of the result shows. */
    job.modes = la_modes_get();
    la_pool_run(run_piece, idle, &job, items, threads);
    la_modes_set(job.modes);
    free(job.scratch);
}
