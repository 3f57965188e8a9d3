package wire

// maxKnown is how many clients a Known remembers. To forget only means that one
// that has lost its connection while the server stops is not let in again.
const maxKnown = 1024

// Known remembers who was here, within bounds: names come from clients. The
// zero value remembers nobody.
type Known map[string]struct{}

// Add remembers a client.
func (k *Known) Add(client string) {
	if *k == nil || len(*k) >= maxKnown {
		*k = make(Known)
	}
	(*k)[client] = struct{}{}
}

// Has reports whether the client is remembered.
func (k Known) Has(client string) bool {
	_, ok := k[client]
	return ok
}
