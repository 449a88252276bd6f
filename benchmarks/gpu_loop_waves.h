// Kernels and workgroups (as _dispatch.py), wavefronts and the CUs that issue their requests (as _waves.py).

#pragma once

#include "gpu_loop_order.h"

namespace {

struct Waves : Order {
    using Order::Order;

    // Tasks, kernels, workgroups

    INLINED void begin_ready() {
        const int64_t number = t.work_ready[--clock.num_ready];
        Task& task = t.work_tasks[number];
        task.ready_ps = clock.now;
        if (--task.gates == 0) on.begin = number;
    }

    INLINED void begin_task() {
        const int64_t number = on.begin;
        on.begin = -1;
        t.work_tasks[number].start_ps = clock.now;
        push(clock.now + model.launch_ps, 2 * number + 1);
    }

    INLINED void far_event(int64_t payload) {
        if (payload >= first_far) {
            on.new_event = payload - first_far;
            return;
        }
        const int64_t task = payload >> 1, number = t.program_task_kernel[task];
        if ((payload & 1) == 0 || t.program_kernel_ptr[number + 1] == t.program_kernel_ptr[number]) {
            on.end_task = task;
            return;
        }
        const int64_t gpu_number = t.program_kernel_gpu[number];
        Gpu& gpu = t.machine_gpus[gpu_number];
        if (gpu.first_kernel < 0)
            gpu.first_kernel = int32_t(number);
        else
            t.machine_kernels[gpu.last_kernel].next_in_queue = int32_t(number);
        gpu.last_kernel = int32_t(number);
        on.kick_gpu = gpu_number;
    }

    INLINED void end_task() {
        t.work_tasks[on.end_task].end_ps = clock.now;
        ++clock.num_done;
        on.end_task = -1;
    }

    INLINED void kick_gpu() {
        const int64_t number = on.kick_gpu;
        on.kick_gpu = -1;
        Gpu& gpu = t.machine_gpus[number];
        if (gpu.is_pending == 0 && gpu.first_kernel >= 0) {
            gpu.is_pending = 1;
            give_event(model.first_dispatcher + number, std::max(clock.now, gpu.ready_ps),
                       DISPATCH_CLASS << SHIFT_CLASS);
        }
    }

    INLINED int64_t find_room(int64_t gpu_number, int64_t count) const {
        int64_t own = t.machine_gpus[gpu_number].next_cu;
        for (int64_t i = 0; i < model.cus; ++i) {
            const Cu& cu = t.machine_cus[gpu_number * model.cus + own];
            if (cu.groups < model.max_groups && cu.waves + count <= model.waves) return own;
            own = own + 1 < model.cus ? own + 1 : 0;
        }
        return -1;
    }

    INLINED int64_t start_waves(int64_t cu_number, int64_t group, int64_t count) {
        int64_t before = -1, place = cu_number * model.waves;
        for (int64_t index = 0; index < count; ++index, ++place) {
            while (t.machine_waves[place].doing != WAVE_GONE) ++place;
            Wave& wave = t.machine_waves[place];
            wave.op = int32_t(t.program_workgroup_ptr[group]);
            wave.end = int32_t(t.program_workgroup_ptr[group + 1]);
            wave.group = int32_t(group);
            wave.index = wave.line = int32_t(index);
            wave.count = int32_t(count);
            wave.operand = wave.slots = wave.unfinished = 0;
            wave.doing = WAVE_NEW;
            wave.cu = int32_t(cu_number);
            wave.sibling = int32_t(before);
            t.machine_wave_times[place].since_ps = clock.now;
            before = place;
        }
        return before;
    }

    INLINED void dispatch(int64_t gpu_number) {
        Gpu& gpu = t.machine_gpus[gpu_number];
        gpu.is_pending = 0;
        const int64_t number = gpu.first_kernel;
        if (number < 0) return;
        const int64_t count = t.program_kernel_waves[number], own = find_room(gpu_number, count);
        if (own < 0) return;
        const int64_t cu_number = gpu_number * model.cus + own;
        Cu& cu = t.machine_cus[cu_number];
        Kernel& kernel = t.machine_kernels[number];
        const int64_t group_number = t.program_kernel_ptr[number] + kernel.next_group++;
        if (group_number + 1 == t.program_kernel_ptr[number + 1]) gpu.first_kernel = kernel.next_in_queue;
        gpu.next_cu = int32_t(own + 1 < model.cus ? own + 1 : 0);
        cu.groups += 1;
        cu.waves += int32_t(count);
        t.counters_group_start[group_number] = clock.now;
        t.counters_group_cu[group_number] = int32_t(own);
        Group& group = t.machine_groups[group_number];
        group.waves_left = int32_t(count);
        group.first_wave = int32_t(start_waves(cu_number, group_number, count));
        wake_group(group.first_wave);
        gpu.ready_ps = clock.now + model.dispatch_ps;
        on.kick_gpu = gpu_number;
    }

    // A wavefront goes on

    INLINED int64_t begin_or_wait(Wave& wave, int64_t op, int64_t kind) const {
        if (kind <= OP_COPY) {
            if (wave.line >= t.program_op_amount[op]) return -1;
            int64_t unroll = t.program_op_unroll[op];
            if (unroll == 0) unroll = model.unroll;
            return wave.slots >= unroll ? WAVE_FULL : WAVE_QUEUED;
        }
        if (kind == OP_RELEASE)
            return wave.operand < t.program_operand_ptr[op + 1] - t.program_operand_ptr[op] ? WAVE_QUEUED : -1;
        if (kind == OP_WAITCNT) return wave.unfinished > t.program_op_amount[op] ? WAVE_COUNTING : -1;
        if (wave.operand > 0) return -1;
        if (kind == OP_BARRIER) {
            wave.operand = 1;
            return WAVE_AT_BARRIER;
        }
        return WAVE_QUEUED;
    }

    INLINED int64_t pass_operations(int64_t place) {
        Wave& wave = t.machine_waves[place];
        for (;;) {
            const int64_t op = wave.op;
            if (op == wave.end) return wave.unfinished == 0 ? WAVE_ENDED : WAVE_DRAINING;
            const int64_t kind = t.program_op_kind[op];
            if (wave.index == 0 || (kind != OP_ACQUIRE && kind != OP_RELEASE)) {
                if (t.counters_op_start[op] < 0) t.counters_op_start[op] = clock.now;
                const int64_t doing = begin_or_wait(wave, op, kind);
                if (doing >= 0) return doing;
                t.counters_op_end[op] = clock.now;
            }
            wave.op = int32_t(op + 1);
            wave.line = wave.index;
            wave.operand = 0;
        }
    }

    INLINED void queue_wave(int64_t cu_number, int64_t place) {
        Cu& cu = t.machine_cus[cu_number];
        t.machine_waves[place].next_in_queue = -1;
        if (cu.first_wave < 0)
            cu.first_wave = int32_t(place);
        else
            t.machine_waves[cu.last_wave].next_in_queue = int32_t(place);
        cu.last_wave = int32_t(place);
    }

    INLINED void come_to_barrier(const Wave& wave) {
        Group& group = t.machine_groups[wave.group];
        if (++group.at_barrier < wave.count) return;
        group.at_barrier = 0;
        int64_t first = group.first_wave;
        while (t.machine_waves[first].sibling >= 0) first = t.machine_waves[first].sibling;
        give_event(model.first_wave + first, clock.now + model.barrier_ps,
                   wave_key(t.machine_waves[first].cu, first));
    }

    INLINED void end_wave(const Wave& wave) {
        Group& group = t.machine_groups[wave.group];
        if (--group.waves_left > 0) return;
        Cu& cu = t.machine_cus[wave.cu];
        t.counters_group_end[wave.group] = clock.now;
        cu.groups -= 1;
        cu.waves -= wave.count;
        for (int64_t sibling = group.first_wave; sibling >= 0; sibling = t.machine_waves[sibling].sibling)
            t.machine_waves[sibling].doing = WAVE_GONE;
        on.kick_gpu = t.program_cu_gpu[wave.cu];
        const int64_t number = t.program_group_kernel[wave.group];
        if (--t.machine_kernels[number].groups_left == 0) on.end_task = t.program_kernel_task[number];
    }

    INLINED void go_on() {
        const int64_t place = t.machine_to_do[--clock.num_to_do];
        const int64_t doing = pass_operations(place);
        do_now(place, doing);
        const Wave& wave = t.machine_waves[place];
        if (doing == WAVE_QUEUED) {
            queue_wave(wave.cu, place);
            on.kick_cu = wave.cu;
        } else if (doing == WAVE_AT_BARRIER) {
            come_to_barrier(wave);
        } else if (doing == WAVE_ENDED) {
            end_wave(wave);
        }
    }

    INLINED void wave_event(int64_t place) {
        wake_group(t.machine_groups[t.machine_waves[place].group].first_wave);  // only barriers give it one
    }

    // Its CU issues

    INLINED void kick_cu() {
        const int64_t number = on.kick_cu;
        on.kick_cu = -1;
        Cu& cu = t.machine_cus[number];
        const bool may_begin = cu.first_wave >= 0 && cu.slots < model.max_slots;
        if (cu.is_pending == 0 && (may_begin || cu.first_item >= 0)) {
            cu.is_pending = 1;
            ++clock.num_cu_events;
            const int64_t own = number - t.program_cu_gpu[number] * model.cus;
            give_event(number, std::max(clock.now, cu.ready_ps), (CU_CLASS << SHIFT_CLASS) | (own << SHIFT_WAVE));
        }
    }

    INLINED void begin_line(Wave& wave, int64_t place, int64_t op, int64_t reads, int64_t operands) {
        const int64_t number = t.machine_free_lines[--clock.num_free_lines];
        Line& line = t.machine_lines[number];
        line.wave = int32_t(place);
        line.op = int32_t(op);
        line.number = wave.line;
        line.reads = int32_t(reads);
        line.writes = line.unposted = line.unacknowledged = int32_t(operands - reads);
        wave.current_line = int32_t(number);
        wave.unfinished += 1;
    }

    struct Next {
        int64_t kind, operand, line;
    };

    INLINED Next next_write(Cu& cu, int64_t line_number) {
        Line& line = t.machine_lines[line_number];
        const int64_t left = line.writes;
        line.writes = int32_t(left - 1);
        if (left == 1) cu.first_item = line.next;
        return {IS_STORE, t.program_operand_ptr[line.op + 1] - left, line_number};
    }

    INLINED Next next_of_wave(int64_t place) {
        Wave& wave = t.machine_waves[place];
        const int64_t op = wave.op, issued = wave.operand;
        wave.operand = int32_t(issued + 1);
        const int64_t kind_of_op = t.program_op_kind[op];
        const int64_t first = t.program_operand_ptr[op], end = t.program_operand_ptr[op + 1];
        if (kind_of_op == OP_ACQUIRE) {
            do_now(place, WAVE_ACQUIRING);
            return {IS_ACQUIRE, first, -1};
        }
        go_later(place);
        const int64_t reads = t.program_op_reads[op];
        if (issued == 0) begin_line(wave, place, op, reads, end - first);
        const int64_t line = wave.current_line;
        if (kind_of_op == OP_RELEASE) return {IS_RELEASE, first + issued, line};
        const bool is_store = kind_of_op == OP_STORE;
        if (issued + 1 == (is_store ? end - first : reads)) {
            wave.operand = 0;
            wave.line += wave.count;
        }
        return {is_store ? IS_STORE : IS_LOAD, first + issued, line};
    }

    INLINED void make_request(Request& event, const Next& next, int64_t place) {
        const int64_t operand = next.operand, pair_number = t.program_operand_pair[operand];
        const int64_t line_number = next.line >= 0 ? t.machine_lines[next.line].number : 0;
        const int64_t address = t.program_operand_address[operand] + t.program_operand_step[operand] * line_number;
        event.address = address;
        event.kind = int8_t(next.kind);
        event.semaphore = t.program_operand_semaphore[operand];
        event.amount = next.kind >= IS_ACQUIRE ? int32_t(t.program_op_amount[t.machine_waves[place].op]) : 1;
        event.issued_ps = clock.now;
        event.choice = 0;
        if (pair_number >= 0) {
            const Pair& pair = t.paths_pairs[pair_number];
            event.choice = int16_t(choose_path(pair.end_out - pair.first_out, address));
        }
        event.pair = int32_t(pair_number);
        event.wave = int32_t(place);
        event.line = int32_t(next.line);
        event.form = next.kind == IS_STORE ? 0 : 1;
    }

    INLINED void set_out(Request& event) {
        Wave& wave = t.machine_waves[event.wave];
        const int64_t gpu = t.program_cu_gpu[wave.cu], own_cu = wave.cu - gpu * model.cus;
        const int64_t noc_path =
            event.pair < 0 ? model.cu_channel + own_cu * model.channels + channel_of(event.address)
                           : model.cu_port + own_cu * model.ports + t.paths_paths[path_out(event)].port_out;
        enter_gpu(event, SEGMENT_OUT, noc_path);
        event.gpu = int16_t(gpu);
        event.key = own_key(wave, event.wave);
        ++t.counters_counts[gpu].issued[event.kind];
    }

    INLINED int64_t issue(int64_t cu_number) {
        Cu& cu = t.machine_cus[cu_number];
        cu.is_pending = 0;
        --clock.num_cu_events;
        cu.ready_ps = clock.now + model.issue_ps;
        on.kick_cu = cu_number;
        Next next = {-1, 0, -1};
        int64_t place = cu.first_wave;
        if (cu.first_item >= 0) {
            const int64_t line = cu.first_item >> 1;
            place = t.machine_lines[line].wave;
            next = next_write(cu, line);
        } else if (place >= 0 && cu.slots < model.max_slots) {
            Wave& wave = t.machine_waves[place];
            cu.first_wave = wave.next_in_queue;
            next = next_of_wave(place);
            wave.slots += 1;
            cu.slots += 1;
            if (cu.slots == model.max_slots) cu.full_since_ps = clock.now;
        }
        if (next.kind < 0) return -1;
        const int64_t number = take_request();
        Request& event = t.entities_requests[number];
        make_request(event, next, place);
        ++clock.num_issued;
        set_out(event);
        return number;
    }

    // What an event means for wavefronts and their CUs

    INLINED void queue_line(int64_t cu_number, int64_t number) {
        Cu& cu = t.machine_cus[cu_number];
        t.machine_lines[number].next = -1;
        if (cu.first_item < 0)
            cu.first_item = int32_t(2 * number);
        else
            t.machine_lines[cu.last_item >> 1].next = int32_t(2 * number);
        cu.last_item = int32_t(2 * number);
    }

    INLINED void settle() {
        if (on.ready_line >= 0) {
            const Line& line = t.machine_lines[on.ready_line];
            if (line.writes == 0) {
                on.free_slot = on.finish_item = line.wave;
                on.free_line = on.ready_line;
            } else {
                on.kick_cu = t.machine_waves[line.wave].cu;
                queue_line(on.kick_cu, on.ready_line);
            }
            on.ready_line = -1;
        }
        if (on.free_line >= 0) {
            t.machine_free_lines[clock.num_free_lines++] = int32_t(on.free_line);
            on.free_line = -1;
        }
        if (on.free_slot >= 0) {
            Wave& wave = t.machine_waves[on.free_slot];
            Cu& cu = t.machine_cus[wave.cu];
            wave.slots -= 1;
            cu.slots -= 1;
            if (cu.slots == model.max_slots - 1) {
                cu.full_ps += clock.now - cu.full_since_ps;
                cu.full_since_ps = -1;
            }
            if (wave.doing == WAVE_FULL) go_later(on.free_slot);
            on.kick_cu = wave.cu;
            on.free_slot = -1;
        }
        if (on.finish_item >= 0) {
            Wave& wave = t.machine_waves[on.finish_item];
            wave.unfinished -= 1;
            if (wave.doing == WAVE_COUNTING || wave.doing == WAVE_DRAINING) go_later(on.finish_item);
            on.finish_item = -1;
        }
    }
};

}  // namespace
