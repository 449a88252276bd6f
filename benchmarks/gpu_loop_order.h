// Events in order (as _wheel.py and engine/_heap.py), keys and requests (as _scheduler.py).

#pragma once

#include <algorithm>

#include "gpu_loop_files.h"

#define INLINED __attribute__((always_inline)) inline

namespace {

constexpr int64_t FROM_HEAP = -1, NOTHING_LEFT = -2;

// What a turn of the loop hands on to the next, or to the end of this one; -1: nothing.
struct HandedOn {
    int64_t kick_cu = -1, wake = -1, begin = -1, kick_gpu = -1, ready_line = -1, free_line = -1, free_slot = -1,
            finish_item = -1, end_task = -1, next_segment = -1, new_event = -1;
};

struct Order {
    const Tables t;
    const Model& model;
    Clock clock;
    HandedOn on;
    const int64_t first_far, wheel_mask;

    INLINED explicit Order(const Tables& tables)
        : t(tables), model(*tables.model), clock(*tables.clock), first_far(2 * tables.model->tasks + 1),
          wheel_mask(tables.num_wheel_head - 1) {}

    // Events in order

    INLINED void give_event(int64_t entity, int64_t at_ps, int64_t key) {
        Request& event = t.entities_requests[entity];
        event.time_ps = at_ps;
        event.key = key;
        on.new_event = entity;
    }

    INLINED int64_t whole_key(const Request& event) const {
        return ((event.time_ps & ((int64_t(1) << clock.bucket_bits) - 1)) << SHIFT_TIME) | event.key;
    }

    INLINED void schedule(int64_t entity) {
        const Request& event = t.entities_requests[entity];
        const int64_t bucket = event.time_ps >> clock.bucket_bits, ahead = bucket - clock.open_bucket;
        if (ahead == 0) {
            const int64_t whole = whole_key(event), first = clock.at_open;
            int64_t at = clock.num_open++;
            for (; at > first && t.wheel_open_key[at - 1] > whole; --at) {
                t.wheel_open_key[at] = t.wheel_open_key[at - 1];
                t.wheel_open_id[at] = t.wheel_open_id[at - 1];
            }
            t.wheel_open_key[at] = whole;
            t.wheel_open_id[at] = int32_t(entity);
        } else if (ahead <= wheel_mask) {
            int32_t& head = t.wheel_head[bucket & wheel_mask];
            t.entities_next[entity] = head;
            head = int32_t(entity);
            ++clock.num_in_wheel;
        } else {
            push(event.time_ps, first_far + entity);
        }
    }

    static INLINED bool is_before(const Entry& one, const Entry& other) {
        return one.time_ps < other.time_ps || (one.time_ps == other.time_ps && one.payload < other.payload);
    }

    INLINED void push(int64_t time_ps, int64_t payload) {
        Entry entry;
        entry.time_ps = time_ps;
        entry.payload = payload;
        int64_t at = clock.num_queued++;
        while (at > 0 && is_before(entry, t.wheel_heap[(at - 1) >> 2])) {
            t.wheel_heap[at] = t.wheel_heap[(at - 1) >> 2];
            at = (at - 1) >> 2;
        }
        t.wheel_heap[at] = entry;
    }

    INLINED void pop() {
        const int64_t count = --clock.num_queued;
        const Entry entry = t.wheel_heap[count];
        int64_t at = 0;
        for (int64_t child = 1; child < count; child = 4 * at + 1) {
            int64_t best = child;
            for (int64_t other = child + 1; other < std::min(child + 4, count); ++other)
                if (is_before(t.wheel_heap[other], t.wheel_heap[best])) best = other;
            if (!is_before(t.wheel_heap[best], entry)) break;
            t.wheel_heap[at] = t.wheel_heap[best];
            at = best;
        }
        t.wheel_heap[at] = entry;
    }

    INLINED int64_t filled_bucket(int64_t bucket, int64_t most) const {
        const int64_t end = bucket + most - 1;
        while (bucket < end && t.wheel_head[bucket & wheel_mask] < 0) ++bucket;
        return bucket;
    }

    INLINED void sort_open(int64_t count) {
        int64_t gap = 1;
        while (gap * 9 < count) gap = gap * 3 + 1;
        for (; gap > 0; gap /= 3)
            for (int64_t i = gap; i < count; ++i) {
                const int64_t key = t.wheel_open_key[i];
                const int32_t entity = t.wheel_open_id[i];
                int64_t at = i;
                for (; at >= gap && t.wheel_open_key[at - gap] > key; at -= gap) {
                    t.wheel_open_key[at] = t.wheel_open_key[at - gap];
                    t.wheel_open_id[at] = t.wheel_open_id[at - gap];
                }
                t.wheel_open_key[at] = key;
                t.wheel_open_id[at] = entity;
            }
    }

    INLINED void open(int64_t bucket) {
        int64_t count = 0;
        for (int64_t entity = t.wheel_head[bucket & wheel_mask]; entity >= 0; entity = t.entities_next[entity])
            t.wheel_open_id[count++] = int32_t(entity);
        t.wheel_head[bucket & wheel_mask] = -1;
        std::reverse(t.wheel_open_id, t.wheel_open_id + count);
        for (int64_t at = 0; at < count; ++at)
            t.wheel_open_key[at] = whole_key(t.entities_requests[t.wheel_open_id[at]]);
        clock.open_bucket = bucket;
        clock.at_open = 0;
        clock.num_open = count;
        clock.num_in_wheel -= count;
        // those that are next are fetched meanwhile
        const int64_t following = filled_bucket(bucket + 1, FETCHED) & wheel_mask;
        for (int64_t entity = t.wheel_head[following]; entity >= 0; entity = t.entities_next[entity])
            __builtin_prefetch(&t.entities_requests[entity], 1, 3);
        sort_open(count);
    }

    INLINED int64_t next_event() {
        if (clock.at_open == clock.num_open) {
            if (clock.num_in_wheel == 0) return clock.num_queued > 0 ? FROM_HEAP : NOTHING_LEFT;
            const int64_t bucket = filled_bucket(clock.open_bucket + 1, wheel_mask + 1);
            if (clock.num_queued > 0 && t.wheel_heap[0].time_ps < bucket << clock.bucket_bits) return FROM_HEAP;
            open(bucket);
        }
        const int64_t at = clock.at_open;
        const int64_t at_ps = (clock.open_bucket << clock.bucket_bits) + (t.wheel_open_key[at] >> SHIFT_TIME);
        if (clock.num_queued > 0 && t.wheel_heap[0].time_ps <= at_ps) return FROM_HEAP;
        clock.now = at_ps;
        ++clock.num_events;
        clock.at_open = at + 1;
        return t.wheel_open_id[at];
    }

    INLINED int64_t take_far() {
        const Entry top = t.wheel_heap[0];
        clock.now = top.time_ps;
        ++clock.num_events;
        pop();
        if (clock.at_open == clock.num_open) {
            clock.open_bucket = clock.now >> clock.bucket_bits;
            clock.at_open = clock.num_open = 0;
        }
        return top.payload;
    }

    // Keys, requests, wavefronts

    INLINED int64_t wave_key(int64_t cu, int64_t place) const {
        const int64_t own = place - t.program_cu_gpu[cu] * model.cus * model.waves;
        return (WAVE_CLASS << SHIFT_CLASS) | (own << SHIFT_WAVE);
    }

    INLINED int64_t own_key(Wave& wave, int64_t place) {
        const int64_t gpu = t.program_cu_gpu[wave.cu], sequence = wave.sequence;
        wave.sequence = int32_t((sequence + 1) & MAX_SEQUENCE);
        const int64_t own = place - gpu * model.cus * model.waves;
        return (MESSAGE_CLASS << SHIFT_CLASS) | (own << SHIFT_WAVE) | (sequence << SHIFT_SEQUENCE) |
               t.program_rank_bits[gpu];
    }

    INLINED int64_t take_request() { return t.entities_free_requests[--clock.num_free_requests]; }
    INLINED void give_request(int64_t number) {
        t.entities_free_requests[clock.num_free_requests++] = int32_t(number);
    }

    INLINED int64_t channel_of(int64_t address) const {
        return (address / model.memory_interleave_bytes) % model.channels;
    }

    INLINED int64_t choose_path(int64_t num_paths, int64_t address) const {
        if (num_paths == 1) return 0;
        int64_t block = address / model.port_interleave_bytes;
        if (model.is_hashed == 1) {
            const int64_t mixed = (block ^ (block >> 7) ^ (block >> 15)) & 0xFFFFFFFF;
            block = ((mixed * 2654435761) & 0xFFFFFFFF) >> 1;
        }
        return block % num_paths;
    }

    INLINED int64_t path_out(const Request& event) const { return t.paths_pairs[event.pair].first_out + event.choice; }
    INLINED int64_t path_back(const Request& event) const {
        const Pair& pair = t.paths_pairs[event.pair];
        const int64_t num_paths = pair.end_back - pair.first_back;
        if (num_paths == pair.end_out - pair.first_out) return pair.first_back + event.choice;
        return pair.first_back + choose_path(num_paths, event.address);
    }

    INLINED int64_t enter_fabric(Request& event, int64_t segment, int64_t path_number) {
        const Path& path = t.paths_paths[path_number];
        event.segment = int8_t(segment);
        event.position = path.first;
        event.stage = STAGE_EGRESS;
        return t.paths_lanes[path.first].label;
    }

    INLINED bool enter_gpu(Request& event, int64_t segment, int64_t noc_path) {
        const int32_t first = t.paths_noc_paths[noc_path], end = t.paths_noc_paths[noc_path + 1];
        event.segment = int8_t(segment);
        event.position = first;
        event.stage = STAGE_HOP;
        return first < end;
    }

    INLINED int64_t serve(Resource& resource, int64_t service_ps, int64_t control) {
        const int64_t end_ps = std::max(clock.now, resource.free_ps) + service_ps;
        resource.free_ps = end_ps;
        ++resource.messages[control];
        resource.busy_ps += service_ps;
        return end_ps;
    }

    INLINED void go_later(int64_t place) { t.machine_to_do[clock.num_to_do++] = int32_t(place); }
    INLINED void wake_group(int64_t place) {
        for (; place >= 0; place = t.machine_waves[place].sibling) go_later(place);
    }

    INLINED void do_now(int64_t place, int64_t doing) {
        Wave& wave = t.machine_waves[place];
        WaveTime& times = t.machine_wave_times[place];
        const Cu& cu = t.machine_cus[wave.cu];
        int64_t* state = t.counters_state + NUM_STATES * wave.cu;
        int64_t spent_ps = clock.now - times.since_ps, full_ps = cu.full_ps, was = STATE_MEMORY;
        if (cu.full_since_ps >= 0) full_ps += clock.now - cu.full_since_ps;
        if (wave.doing == WAVE_QUEUED) {
            const int64_t waited_ps = full_ps - times.full_ps;
            state[STATE_MEMORY] += waited_ps;
            spent_ps -= waited_ps;
            was = STATE_ISSUE;
        } else if (wave.doing == WAVE_ACQUIRING) {
            was = STATE_SEMAPHORE;
        } else if (wave.doing == WAVE_AT_BARRIER) {
            was = STATE_BARRIER;
        }
        state[was] += spent_ps;
        wave.doing = int32_t(doing);
        times.since_ps = clock.now;
        times.full_ps = full_ps;
    }
};

}  // namespace
