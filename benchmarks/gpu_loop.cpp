// The load-store event loop in C++17, for programs of copies, flags and barriers (all-gathers by put and by get).
//
// The same structure as src/trine/gpu/_loop.py: the same records, time wheel, kinds of events and order of what happens,
// function by function (its parts are in the gpu_loop_*.h beside it), so that both come to the same bits.
// bench_gpu_loop.py compiles and runs it; it writes the two files that this one needs: gpu_loop_tables.h (records, names
// of arrays, constants: those of the Python side) and the tables of a system that has not begun. What such programs do
// not use (polls, packets, L2, fair lanes, switches that add up, replayed peers) is not here: the tables are checked, and
// refused where they have it.
//
//     gpu_loop TABLES RESULT    prints events, end in ps and ns of CPU time; writes all tables as they are at the end

#include <ctime>

#include "gpu_loop_waves.h"

namespace {

// It lives in one function, so that the compiler keeps its members in registers.
struct Loop : Waves {
    using Waves::Waves;

    // A request on its way

    INLINED void hop(int64_t number) {
        Request& event = t.entities_requests[number];
        const int64_t step = t.paths_noc_hops[event.position];
        Resource& link = t.machine_resources[(step >> 1) + event.gpu * model.resources];
        const int64_t control = event.form & 1;
        event.time_ps = serve(link, link.service_ps[control], control) + link.after_ps;
        event.position += 1;
        ((step & 1) == 0 ? on.new_event : on.next_segment) = number;
    }

    INLINED void cross(int64_t number) {
        Request& event = t.entities_requests[number];
        const Lane& lane = t.paths_lanes[event.position];
        const int64_t control = event.form & 1;
        event.time_ps = serve(t.machine_resources[lane.resource], lane.service_ps[control], control) + lane.after_ps;
        if (lane.is_last == 0) {
            event.position += 1;
            event.stage = STAGE_LANE;
            event.key = (event.key & OWN_KEY) | (t.paths_lanes[event.position].label << SHIFT_LABEL);
            on.new_event = number;
        } else {
            on.next_segment = number;
        }
    }

    // Let a request at the end of a segment begin the next one that has something in it; returns its key's label.
    INLINED int64_t next_segment(Request& event) {
        int64_t segment = event.segment;
        const bool is_away = event.pair >= 0;
        if (segment == SEGMENT_OUT && is_away) return enter_fabric(event, SEGMENT_FABRIC, path_out(event));
        const int64_t label = segment < SEGMENT_FROM && is_away ? t.paths_pairs[event.pair].label : 0;
        if (segment == SEGMENT_FABRIC) {
            const int64_t port = t.paths_paths[path_out(event)].port_in;
            event.gpu = int16_t(t.paths_pairs[event.pair].gpu);
            if (enter_gpu(event, SEGMENT_THERE,
                          model.port_channel + port * model.channels + channel_of(event.address)))
                return label;
        }
        if (segment < SEGMENT_MEMORY) {
            event.segment = SEGMENT_MEMORY;
            event.stage = STAGE_MEMORY;
            return label;
        }
        if (segment == SEGMENT_MEMORY) {
            event.form = event.kind == IS_LOAD ? 0 : 1;
            if (is_away) {
                const int64_t port = t.paths_paths[path_back(event)].port_out;
                if (enter_gpu(event, SEGMENT_FROM,
                              model.channel_port + channel_of(event.address) * model.ports + port))
                    return label;
                segment = SEGMENT_FROM;
            }
        }
        if (segment == SEGMENT_FROM) return enter_fabric(event, SEGMENT_BACK, path_back(event));
        if (segment == SEGMENT_HOME) {
            event.segment = SEGMENT_OVER;
            event.stage = STAGE_ANSWER;
            return 0;
        }
        const int64_t cu = t.machine_waves[event.wave].cu, gpu = t.program_cu_gpu[cu];
        int64_t first;
        if (segment == SEGMENT_BACK) {
            first = model.port_cu + t.paths_paths[path_back(event)].port_in * model.cus;
            event.gpu = int16_t(gpu);
        } else {
            first = model.channel_cu + channel_of(event.address) * model.cus;
        }
        enter_gpu(event, SEGMENT_HOME, first + cu - gpu * model.cus);
        return 0;
    }

    // At the memory, and back

    INLINED void reach_memory(int64_t number) {
        Request& event = t.entities_requests[number];
        const int64_t control = event.kind >= IS_ACQUIRE ? 1 : 0;
        Resource& channel =
            t.machine_resources[event.gpu * model.resources + model.first_channel + channel_of(event.address)];
        event.time_ps = serve(channel, model.channel_ps[control], control) + model.memory_ps;
        if (event.semaphore >= 0) {
            event.stage = STAGE_DONE;
            on.new_event = number;
        } else {
            on.next_segment = number;
        }
    }

    INLINED void leave_memory(int64_t number) {
        Request& event = t.entities_requests[number];
        Semaphore& semaphore = t.machine_semaphores[event.semaphore];
        if (event.kind == IS_STORE || event.kind == IS_RELEASE) {
            semaphore.amount += event.amount;
            on.wake = event.semaphore;
        } else {
            const bool others_wait = semaphore.first_waiting >= 0;
            if (!others_wait && semaphore.amount >= event.amount) {
                semaphore.amount -= event.amount;
                event.amount = 0;
            } else {
                t.entities_next[number] = -1;
                if (others_wait)
                    t.entities_next[semaphore.last_waiting] = int32_t(number);
                else
                    semaphore.first_waiting = int32_t(number);
                semaphore.last_waiting = int32_t(number);
                return;
            }
        }
        event.time_ps = clock.now;
        on.next_segment = number;
    }

    INLINED void wake_first() {
        Semaphore& semaphore = t.machine_semaphores[on.wake];
        const int64_t number = semaphore.first_waiting;
        if (number < 0 || t.entities_requests[number].amount > semaphore.amount) {
            on.wake = -1;
            return;
        }
        Request& event = t.entities_requests[number];
        semaphore.first_waiting = t.entities_next[number];
        semaphore.amount -= event.amount;
        event.amount = 0;
        event.time_ps = clock.now;
        on.next_segment = number;
    }

    INLINED void answer(int64_t number) {
        const Request& event = t.entities_requests[number];
        const int64_t place = event.wave;
        if (event.kind == IS_LOAD) {
            t.counters_counts[t.program_cu_gpu[t.machine_waves[place].cu]].load_ps += clock.now - event.issued_ps;
            if (--t.machine_lines[event.line].reads > 0)
                on.free_slot = place;
            else
                on.ready_line = event.line;
        } else if (event.kind == IS_ACQUIRE) {
            on.free_slot = place;
            go_later(place);
        } else {
            Line& line = t.machine_lines[event.line];
            const int64_t kind = t.program_op_kind[line.op];
            line.unposted -= 1;
            if (kind == OP_STORE || kind == OP_RELEASE || line.unposted == 0) on.free_slot = place;
            line.unacknowledged -= 1;
            if (line.unacknowledged == 0) {
                on.finish_item = place;
                on.free_line = event.line;
            }
        }
        give_request(number);
    }

    // The loop itself

    INLINED void schedule_made() {
        if (on.next_segment >= 0) {
            Request& event = t.entities_requests[on.next_segment];
            on.new_event = on.next_segment;
            on.next_segment = -1;
            const int64_t label = next_segment(event);
            event.key = (event.key & OWN_KEY) | (label << SHIFT_LABEL);
        }
        if (on.new_event >= 0) {
            if (t.entities_requests[on.new_event].time_ps > MAX_PS) fail("simulated time passes MAX_PS");
            schedule(on.new_event);
            on.new_event = -1;
        }
    }

    INLINED void advance() {
        bool follows = true;  // something may follow from the last event: most events are hops, from which nothing does
        for (;;) {
            int64_t number = -1;  // the request whose event it is
            if (follows) {
                if (clock.num_free_requests < MARGIN) fail("more requests at a time than the tables have room for");
                if (clock.num_free_lines < MARGIN) fail("more lines at work than the tables have room for");
                if (clock.num_to_do > 0) go_on();
                else if (on.kick_cu >= 0) kick_cu();
                else if (on.wake >= 0) wake_first();
                else if (on.begin >= 0) begin_task();
                else if (clock.num_ready > 0) begin_ready();
                else if (on.kick_gpu >= 0) kick_gpu();
                else {
                    follows = false;
                    continue;
                }
            } else {
                const int64_t entity = next_event();
                if (entity >= model.first_request) {
                    number = entity;
                } else {
                    follows = true;
                    if (entity >= model.first_dispatcher) dispatch(entity - model.first_dispatcher);
                    else if (entity >= model.first_wave) wave_event(entity - model.first_wave);
                    else if (entity >= 0) number = issue(entity);
                    else if (entity == FROM_HEAP) far_event(take_far());
                    else break;
                }
            }
            if (number >= 0) {
                const int64_t stage = t.entities_requests[number].stage;
                if (stage == STAGE_HOP) {
                    hop(number);
                } else if (stage <= STAGE_EGRESS) {
                    follows = true;
                    cross(number);
                } else if (stage == STAGE_MEMORY) {
                    reach_memory(number);
                } else if (stage == STAGE_DONE) {
                    follows = true;
                    leave_memory(number);
                } else if (stage == STAGE_ANSWER) {
                    follows = true;
                    answer(number);
                } else {
                    fail("an event of a kind that these programs have not");
                }
            }
            if (follows) {
                settle();
                if (on.end_task >= 0) end_task();
            }
            schedule_made();
        }
    }
};

__attribute__((noinline)) void run(const Tables& tables) {
    Loop loop(tables);
    loop.advance();
    *tables.clock = loop.clock;
}

int64_t cpu_ns() {
    timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return int64_t(now.tv_sec) * 1000000000 + now.tv_nsec;
}

}  // namespace

int main(int count, char** words) {
    require(count == 3, "usage: gpu_loop TABLES RESULT");
    const Tables tables = read_tables(words[1]);
    check(tables);
    const int64_t began = cpu_ns();
    run(tables);
    const int64_t spent = cpu_ns() - began;
    require(tables.clock->num_done == tables.num_work_tasks, "nothing can happen any more, and kernels have not ended");
    write_tables(words[2], tables);
    std::printf("%lld %lld %lld\n", (long long)tables.clock->num_events, (long long)tables.clock->now,
                (long long)spent);
}
