package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/containerdisk/containerdisk/internal/config"
)

// probeTimeout is how long a probe waits for the answer: less than the second
// that Kubernetes gives one by default would be too little on a busy machine,
// more is pointless.
const probeTimeout = 3 * time.Second

func newProbe(env environment) *cobra.Command {
	s := newSettings(env)
	cmd := &cobra.Command{
		Use:   "probe",
		Short: "Ask the server on this machine whether it is ready",
		Long: "Ask the server whether it is ready, and exit with 0 if it is: for a container's health check and\n" +
			"for exec probes, as the image has no other program. STATUS_LISTEN is read as the server reads it.",
		Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := config.FromEnv(s)
			if err != nil {
				return refusal{err}
			}
			if !cfg.StatusListen.IsValid() {
				return refusal{errors.New("STATUS_LISTEN is off: there is nobody to ask")}
			}
			return probe(cmd.Context(), cfg.StatusListen)
		},
	}
	s.addFlags(cmd.Flags(), "STATUS_LISTEN")
	return cmd
}

// probe asks the server whose status page is at addr.
func probe(ctx context.Context, addr netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+reachable(addr).String()+"/readyz", nil)
	if err != nil {
		return err
	}
	transport := &http.Transport{DisableKeepAlives: true} // no proxy: the server is here
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return fmt.Errorf("not ready: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		const enough = 4 << 10
		body, _ := io.ReadAll(io.LimitReader(resp.Body, enough)) // as far as it can be read
		return fmt.Errorf("not ready: %s", strings.TrimSpace(string(body)))
	}
	return nil
}

// reachable is addr with this machine's own address in place of "any".
func reachable(addr netip.AddrPort) netip.AddrPort {
	switch {
	case addr.Addr() == netip.IPv4Unspecified():
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), addr.Port())
	case addr.Addr() == netip.IPv6Unspecified():
		return netip.AddrPortFrom(netip.IPv6Loopback(), addr.Port())
	}
	return addr
}
