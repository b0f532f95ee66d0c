//go:build linux

package load

import "time"

// schedule is an open loop: request k is due k/rate after the start, whatever became of the others. A client takes the next number
// when it is free, and sleeps until that is due. Numbers are handed out in order, so sleepers wake in the order in which they fell
// asleep, and a plain queue is all the timer there is.
type schedule struct {
	start    time.Time
	interval float64 // nanoseconds
	taken    int64
	sleepers []*client
	head     int
}

func newSchedule(start time.Time, rate float64) *schedule {
	return &schedule{start: start, interval: float64(time.Second) / rate}
}

// due is when the next request is due that nobody has taken.
func (s *schedule) due() time.Time {
	return s.start.Add(time.Duration(float64(s.taken) * s.interval))
}

// take hands the next request out and returns when it is due.
func (s *schedule) take() time.Time {
	due := s.due()
	s.taken++
	return due
}

// sleep queues a client that has taken a number in the future.
func (s *schedule) sleep(c *client) { s.sleepers = append(s.sleepers, c) }

// next is the first sleeper, nil if there is none.
func (s *schedule) next() *client {
	if s.head == len(s.sleepers) {
		return nil
	}
	return s.sleepers[s.head]
}

func (s *schedule) pop() {
	s.sleepers[s.head] = nil
	s.head++
	if s.head*2 >= len(s.sleepers) {
		s.sleepers = append(s.sleepers[:0], s.sleepers[s.head:]...)
		s.head = 0
	}
}
