package scsi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
)

// Store keeps what a logical unit must remember across a restart: persistent
// reservations for which an initiator asked that (APTPL), and mode parameters
// that one had saved (SP). It is small and changes seldom.
type Store interface {
	// Load returns what was saved last, or nothing if nothing was.
	Load() ([]byte, error)
	// Save replaces it as a whole: once Save has returned nil it is on stable
	// storage, and if Save fails the old state is still there.
	Save([]byte) error
}

// memory is the form in which the state is saved. What it does not know it
// refuses, rather than losing it at the next Save.
type memory struct {
	Version         int             `json:"version"`
	Registered      []memoryNexus   `json:"registrations,omitempty"`
	Type            reservationType `json:"reservation,omitempty"`
	Holder          string          `json:"holder,omitempty"`
	SWP             bool            `json:"swp,omitempty"`
	DescriptorSense bool            `json:"dSense,omitempty"`
	WriteThrough    bool            `json:"writeThrough,omitempty"`
	TAS             bool            `json:"tas,omitempty"`
	Operation       *operationPlan  `json:"operation,omitempty"`
}

type memoryNexus struct {
	Port     string `json:"port"`
	Key      uint64 `json:"key"`
	AllPorts bool   `json:"allPorts,omitempty"`
}

const memoryVersion = 1

// maxMemory bounds what Restore takes, in bytes.
const maxMemory = 1 << 20

// Restore takes over what the store of LUNOptions has from before, and must be
// called before the first nexus. An error means that reservations may be lost:
// the disk should not be served then, as those who hold them rely on them.
func (l *LUN) Restore() error {
	if l.store == nil {
		return nil
	}
	b, err := l.store.Load()
	if err != nil {
		return fmt.Errorf("loading the state of the logical unit: %w", err)
	}
	if len(b) == 0 {
		return nil
	}
	r, modes, plan, err := parseMemory(b)
	if err == nil {
		err = l.resume(plan)
	}
	if err != nil {
		return fmt.Errorf("saved state of the logical unit: %w", err)
	}
	l.reserved.Store(r)
	l.saved.Store(uint32(modes))
	l.mode.Store(uint32(modes))
	return nil
}

// resume goes on with the operation that ran when the state was saved.
func (l *LUN) resume(plan *operationPlan) error {
	switch {
	case plan == nil:
		return nil
	case plan.Failed && !plan.Sanitize, plan.Passes < 0 || plan.Passes > maskOverwriteCount:
		return fmt.Errorf("operation %+v", *plan)
	case plan.Pattern != nil && len(plan.Pattern) != l.blockSize():
		return fmt.Errorf("operation with a pattern of %d bytes, and blocks of %d", len(plan.Pattern), l.blockSize())
	case l.caps.ReadOnly:
		return fmt.Errorf("SANITIZE or FORMAT UNIT was going on: the disk must not be write-protected until it is over")
	case !plan.Failed:
		l.runOperation(*plan)
		return nil
	}
	o := &operation{plan: *plan, busy: codeSanitizing, done: make(chan struct{}), err: errSanitizeFailed}
	o.failed.Store(true)
	close(o.done)
	l.back.operation.Store(o)
	return nil
}

// pending is the operation to be remembered: one that runs or has failed.
func (l *LUN) pending() *operationPlan {
	o := l.back.operation.Load()
	if o == nil {
		return nil
	}
	plan := o.plan
	plan.Failed = o.failed.Load()
	return &plan
}

// save saves the state; LUN.changing is held.
func (l *LUN) save(r *reservations, modes modeBits, plan *operationPlan) error {
	m := memory{
		Version:         memoryVersion,
		SWP:             modes&modeSWP != 0,
		DescriptorSense: modes&modeDescriptorSense != 0,
		WriteThrough:    modes&modeWriteThrough != 0,
		TAS:             modes&modeTAS != 0,
		Operation:       plan,
	}
	if r.persist {
		m.Type, m.Holder = r.kind, r.holder
		for _, g := range r.registered {
			m.Registered = append(m.Registered, memoryNexus{g.port, g.key, g.allPorts})
		}
	}
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return l.store.Save(b)
}

// parseMemory reads saved state and checks that it is one that can be.
func parseMemory(b []byte) (*reservations, modeBits, *operationPlan, error) {
	if len(b) > maxMemory {
		return nil, 0, nil, fmt.Errorf("%d bytes, limit %d", len(b), maxMemory)
	}
	m := memory{}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&m); err != nil {
		return nil, 0, nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, 0, nil, fmt.Errorf("more than one value")
	}
	if m.Version != memoryVersion {
		return nil, 0, nil, fmt.Errorf("version %d, want %d", m.Version, memoryVersion)
	}
	r, err := m.reservations()
	return r, m.modes(), m.Operation, err
}

func (m *memory) modes() (bits modeBits) {
	for bit, set := range map[modeBits]bool{
		modeSWP: m.SWP, modeDescriptorSense: m.DescriptorSense, modeWriteThrough: m.WriteThrough, modeTAS: m.TAS,
	} {
		if set {
			bits |= bit
		}
	}
	return bits
}

// reservations are those saved. PRGENERATION begins anew with each power on.
func (m *memory) reservations() (*reservations, error) {
	c := change{reservations: reservations{persist: len(m.Registered) > 0}}
	for _, g := range m.Registered {
		if g.Port == "" || g.Key == 0 || c.find(g.Port) != nil {
			return nil, fmt.Errorf("registration of %q with key %#x", g.Port, g.Key)
		}
		if err := c.register(registration{g.Port, g.Key, g.AllPorts}); err != nil {
			return nil, err
		}
	}
	switch {
	case m.Type == noReservation && m.Holder == "":
		return &c.reservations, nil
	case !m.Type.exists(), m.Type.allHold() && (m.Holder != "" || len(m.Registered) == 0),
		!m.Type.allHold() && c.find(m.Holder) == nil:
		return nil, fmt.Errorf("reservation of type %d held by %q", m.Type, m.Holder)
	}
	c.reserve(m.Type, m.Holder)
	return &c.reservations, nil
}
