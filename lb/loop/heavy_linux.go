package loop

// heavyQueue holds the tasks whose next step is expensive. Under overload the
// newest is the one whose client is still there, so it is served first and the
// oldest is given up.
type heavyQueue struct {
	oldest, newest *pollTask
	n              int
}

func (q *heavyQueue) len() int { return q.n }

func (q *heavyQueue) push(t *pollTask) {
	t.older, t.newer = q.newest, nil
	if q.newest != nil {
		q.newest.newer = t
	} else {
		q.oldest = t
	}
	q.newest = t
	q.n++
}

func (q *heavyQueue) remove(t *pollTask) {
	if t.older != nil {
		t.older.newer = t.newer
	} else {
		q.oldest = t.newer
	}
	if t.newer != nil {
		t.newer.older = t.older
	} else {
		q.newest = t.older
	}
	t.older, t.newer = nil, nil
	q.n--
}

func (q *heavyQueue) popNewest() *pollTask {
	t := q.newest
	q.remove(t)
	return t
}

func (q *heavyQueue) popOldest() *pollTask {
	t := q.oldest
	q.remove(t)
	return t
}
