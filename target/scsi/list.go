package scsi

// Replies and parameter lists: data-in that Begin has built, and data-out that
// is collected for Finish. What is collected grows as it comes, and is bounded by
// what begin asks for: a length of two bytes at most, or 2*maxCompare.

// reply makes Task.data the data-in, cut to the allocation length: that is not
// an error (SPC "Allocation length").
func (t *Task) reply(allocation uint32) error {
	t.in = min(int64(len(t.data)), int64(allocation))
	return nil
}

// expect asks for a parameter list of n bytes.
func (t *Task) expect(n int) error {
	t.out = int64(n)
	return nil
}

// moveList moves a piece of a reply or of a parameter list.
func (t *Task) moveList(p []byte, at int64, _ patience) error {
	if t.in > 0 {
		copy(p, t.data[at:])
		return nil
	}
	t.data = append(t.data, p...)
	return nil
}

// list is the parameter list, which must have come as a whole.
func (t *Task) list() ([]byte, error) {
	if t.moved < t.out {
		return nil, errListLength
	}
	return t.data, nil
}
