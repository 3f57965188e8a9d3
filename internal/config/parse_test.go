package config

import (
	"strings"
	"testing"
)

func TestParseSize(t *testing.T) {
	tests := []struct {
		text string
		want int64 // 0: an error
	}{
		{"512", 512},
		{"10737418240", 10 << 30},
		{"10G", 10_000_000_000},
		{"10Gi", 10 << 30},
		{"512k", 512_000},
		{"1Ki", 1024},
		{"8M", 8_000_000},
		{"3Mi", 3 << 20},
		{"2T", 2_000_000_000_000},
		{"64Ti", 64 << 40},
		{"70368744177664", 64 << 40},
		{"70368744178176", 0}, // a sector more
		{"65Ti", 0},
		{"18446744073709551615", 0},
		{"9223372036854775807Ti", 0},
		{"16777217Ti", 0}, // wraps to 1 TiB in 64 bits
		{"0", 0}, {"0Gi", 0},
		{"513", 0}, {"1k", 0}, {"1M", 0},
		{"", 0}, {"G", 0}, {"-1G", 0}, {"+1G", 0}, {"1.5Gi", 0}, {"1e9", 0}, {"10GB", 0}, {"10 G", 0}, {"10g", 0}, {"0x200", 0}, {"1_024", 0},
	}
	for _, tt := range tests {
		got, err := parseSize(tt.text)
		if got != tt.want || (err == nil) != (tt.want != 0) {
			t.Errorf("%q: got %d, %v, want %d", tt.text, got, err, tt.want)
		}
	}
	if _, err := parseSize("1M"); err == nil || !strings.Contains(err.Error(), "the next is 1000448") {
		t.Errorf("1M: got %v, want the next size named", err)
	}
}

func TestParseISCSIName(t *testing.T) {
	longest := "iqn.2017-01.io.kubevirt:" + strings.Repeat("x", 223-len("iqn.2017-01.io.kubevirt:"))
	tests := []struct{ name, problem string }{
		{"iqn.2017-01.io.kubevirt:wrapper", ""},
		{"iqn.2001-04.com.example", ""}, // RFC 7143 §4.2.7.4 and the next four
		{"iqn.2001-04.com.example:storage:diskarrays-sn-a8675309", ""},
		{"iqn.2001-04.com.example:storage.tape1.sys1.xyz", ""},
		{"iqn.1992-12.com.a-b.c1:x.y-z:0", ""},
		{"eui.02004567a425678d", ""},
		{"naa.52004567ba64678d", ""},
		{"naa.62004567ba64678d0123456789abcdef", ""},
		{longest, ""},

		{longest + "x", "at most 223 bytes, this one 224"},
		{"IQN.2017-01.io.kubevirt:Wrapper", "want iqn.2017-01.io.kubevirt:wrapper"},
		{"eui.02004567A425678D", "want eui.02004567a425678d"},
		{"iqn.2017-13.io.kubevirt:x", "not an iSCSI name"},
		{"iqn.2017-00.io.kubevirt:x", "not an iSCSI name"},
		{"iqn.2017-1.io.kubevirt:x", "not an iSCSI name"},
		{"iqn.17-01.io.kubevirt:x", "not an iSCSI name"},
		{"iqn.2017-01.", "not an iSCSI name"},
		{"iqn.2017-01.io..kubevirt", "not an iSCSI name"},
		{"iqn.2017-01.-io", "not an iSCSI name"},
		{"iqn.2017-01.io:", "not an iSCSI name"},
		{"iqn.2017-01.io.kubevirt:a b", "not an iSCSI name"},
		{"iqn.2017-01.io.kubevirt:a_b", "not an iSCSI name"},
		{"iqn.2017-01.io.kubevirt:a\n", "not an iSCSI name"},
		{"iqn.2017-01.io.kubevirt:é", "not an iSCSI name"},
		{"eui.02004567a425678", "not an iSCSI name"},
		{"eui.02004567a425678d0", "not an iSCSI name"},
		{"eui.02004567a425678g", "not an iSCSI name"},
		{"naa.52004567ba64678", "not an iSCSI name"},
		{"naa.52004567ba64678d01234567", "not an iSCSI name"},
		{"wrapper", "not an iSCSI name"},
	}
	for _, tt := range tests {
		got, err := parseISCSIName(tt.name)
		if tt.problem == "" {
			if err != nil || got != tt.name {
				t.Errorf("%q: got %q, %v", tt.name, got, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), tt.problem) {
			t.Errorf("%q: got %v, want %q", tt.name, err, tt.problem)
		}
	}
}
