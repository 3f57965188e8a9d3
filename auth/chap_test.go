package auth

import (
	"slices"
	"strings"
	"testing"
)

func secretOf(n int, with byte) Secret {
	return NewSecret(slices.Repeat([]byte{with}, n))
}

func TestValidate(t *testing.T) {
	good := Account{"alice", secretOf(12, 'a')}
	other := Account{"target", secretOf(16, 'b')}
	tests := []struct {
		name string
		chap CHAP
		want []Field
	}{
		{"nothing", CHAP{}, nil},
		{"one way", CHAP{Initiator: good}, nil},
		{"mutual", CHAP{Initiator: good, Target: other, Algorithms: []Algorithm{SHA256, MD5}}, nil},
		{"longest", CHAP{Initiator: Account{strings.Repeat("n", 255), secretOf(255, 's')}}, nil},
		{"same name both ways", CHAP{Initiator: good, Target: Account{"alice", other.Secret}}, nil},
		{"no secret", CHAP{Initiator: Account{Name: "alice"}}, []Field{InitiatorSecret}},
		{"no name", CHAP{Initiator: Account{Secret: good.Secret}}, []Field{InitiatorName}},
		{"short secret", CHAP{Initiator: Account{"alice", secretOf(11, 'a')}}, []Field{InitiatorSecret}},
		{"long secret", CHAP{Initiator: Account{"alice", secretOf(256, 'a')}}, []Field{InitiatorSecret}},
		{"long name", CHAP{Initiator: Account{strings.Repeat("n", 256), good.Secret}}, []Field{InitiatorName}},
		{"newline in name", CHAP{Initiator: Account{"ali\nce", good.Secret}}, []Field{InitiatorName}},
		{"NUL in name", CHAP{Initiator: Account{"alice\x00", good.Secret}}, []Field{InitiatorName}},
		{"name not UTF-8", CHAP{Initiator: Account{"\xff\xfe", good.Secret}}, []Field{InitiatorName}},
		{"target only", CHAP{Target: other}, []Field{InitiatorName}},
		{"half a target", CHAP{Initiator: good, Target: Account{Name: "target"}}, []Field{TargetSecret}},
		{"other half of a target", CHAP{Initiator: good, Target: Account{Secret: other.Secret}}, []Field{TargetName}},
		{"equal secrets", CHAP{Initiator: good, Target: Account{"target", secretOf(12, 'a')}}, []Field{TargetSecret}},
		{"no algorithm", CHAP{Initiator: good, Algorithms: []Algorithm{}}, []Field{AllowedAlgorithms}},
		{"unknown algorithms", CHAP{Initiator: good, Algorithms: []Algorithm{4, 9}}, []Field{AllowedAlgorithms, AllowedAlgorithms}},
		{"algorithm twice", CHAP{Initiator: good, Algorithms: []Algorithm{MD5, SHA1, MD5}}, []Field{AllowedAlgorithms}},
		{"everything at once", CHAP{Account{"", secretOf(3, 'x')}, Account{"t\t", secretOf(3, 'x')}, []Algorithm{1}},
			[]Field{InitiatorName, InitiatorSecret, TargetName, TargetSecret, TargetSecret, AllowedAlgorithms}},
	}
	for _, tt := range tests {
		var got []Field
		for _, p := range tt.chap.Problems() {
			got = append(got, p.Field)
			if strings.Contains(p.Text, "aaa") || strings.Contains(p.Text, "xxx") {
				t.Errorf("%s: the text has the secret in it: %s", tt.name, p.Text)
			}
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: got problems with %v, want %v", tt.name, got, tt.want)
		}
		err := tt.chap.Validate()
		if (err != nil) != (len(tt.want) > 0) {
			t.Errorf("%s: Validate() = %v", tt.name, err)
		}
		for _, f := range tt.want {
			if !strings.Contains(err.Error(), f.String()) {
				t.Errorf("%s: %q does not name the %v", tt.name, err, f)
			}
		}
	}
}
