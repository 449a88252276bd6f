// Tables of the loop from a file and into one, and whether they are of a system that gpu_loop.cpp can run.

#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "gpu_loop_tables.h"

using std::int32_t;
using std::int64_t;

namespace {

[[noreturn]] void fail(const char* why) {
    std::fprintf(stderr, "gpu_loop: %s\n", why);
    std::exit(2);
}

void require(bool is_so, const char* why) {
    if (!is_so) fail(why);
}

// A file of arrays, each with the bytes of an entry and the number of entries before it.

void* read_array(std::FILE* file, int64_t entry_bytes, int64_t& count) {
    int64_t head[2];
    require(std::fread(head, sizeof head, 1, file) == 1, "the tables end early");
    require(head[0] == entry_bytes, "the tables are of another version: records have another size");
    count = head[1];
    const size_t bytes = size_t(entry_bytes * count), huge = size_t(2) << 20;
    const bool is_large = bytes >= 2 * huge;  // as numpy does it
    const size_t align = is_large ? huge : 64, room = (bytes / align + 1) * align;
    void* made = std::aligned_alloc(align, room);
    require(made != nullptr, "no memory");
    if (is_large) madvise(made, room, MADV_HUGEPAGE);
    require(bytes == 0 || std::fread(made, bytes, 1, file) == 1, "the tables end early");
    return made;
}

Tables read_tables(const char* path) {
    std::FILE* file = std::fopen(path, "rb");
    require(file != nullptr, "the tables cannot be read");
    Tables tables;
#define READ(type, name) tables.name = static_cast<type*>(read_array(file, sizeof(type), tables.num_##name));
    FOR_ARRAYS(READ)
#undef READ
    std::fclose(file);
    return tables;
}

void write_tables(const char* path, const Tables& tables) {
    std::FILE* file = std::fopen(path, "wb");
    require(file != nullptr, "the result cannot be written");
#define WRITE(type, name)                                                            \
    {                                                                                \
        const int64_t head[2] = {sizeof(type), tables.num_##name};                   \
        std::fwrite(head, sizeof head, 1, file);                                     \
        std::fwrite(tables.name, sizeof(type), size_t(tables.num_##name), file);     \
    }
    FOR_ARRAYS(WRITE)
#undef WRITE
    require(std::fclose(file) == 0, "the result cannot be written");
}

void check(const Tables& t) {
    const Model& model = *t.model;
    require(model.is_fair == 0 && model.is_posted == 0 && model.first_slice < 0 && model.far_ps == 0 &&
                model.poll_ps < 0 && model.monitors < 0 && model.is_drawn == 0 && model.barrier_ps > 0,
            "only GPU models with lanes and stores as astra3-generic's, without an L2 and polls");
    require(model.recorded_gpu < 0 && model.has_answers == 0 && t.num_peers_writes == 0, "no replayed peers");
    require(model.first_host == int64_t(t.num_machine_gpus), "no hosts");
    for (int64_t op = 0; op < t.num_program_op_kind; ++op) {
        const int64_t kind = t.program_op_kind[op];
        require(kind == OP_LOAD || kind == OP_STORE || kind == OP_COPY || kind == OP_ACQUIRE || kind == OP_RELEASE ||
                    kind == OP_WAITCNT || kind == OP_BARRIER,
                "only programs of load, store, copy, acquire, release, waitcnt and barrier");
    }
    for (int64_t i = 0; i < t.num_program_operand_role; ++i)
        require(t.program_operand_role[i] == ROLE_READ || t.program_operand_role[i] == ROLE_WRITE,
                "no lines with flags and no multimem operands");
    for (int64_t i = 0; i < t.num_paths_pairs; ++i) require(t.paths_pairs[i].gpu >= 0, "all GPUs must be simulated");
    for (int64_t i = 0; i < t.num_work_tasks; ++i)
        require(t.work_tasks[i].kind == TASK_COMPUTE && t.program_task_kernel[i] >= 0 &&
                    t.work_tasks[i].num_successors == 0 && t.work_tasks[i].next_in_stream < 0,
                "all tasks must be kernels without order among them");
}

}  // namespace
