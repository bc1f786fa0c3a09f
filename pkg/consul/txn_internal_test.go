package consul

import (
	"encoding/json"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/hashicorp/consul/api"
)

// Callers fill transactions by Bytes, so it must be an upper bound of the bytes that are sent.
func TestOpBytesIsAnUpperBound(t *testing.T) {
	t.Parallel()
	const index = math.MaxUint64
	session := strings.Repeat("s", 36)
	for _, key := range []string{"", "rcfarm/pods/x/y.0", "q\"\\<&>\u2028é\xff\x01\n"} {
		for _, value := range [][]byte{nil, {}, {1}, {1, 2}, {1, 2, 3}, make([]byte, 1000)} {
			for _, o := range []Op{
				Set(key, value), SetFlags(key, value, index), CAS(key, value,
					index), Delete(key), DeleteCAS(key, index),
				CheckIndex(key, index), CheckSession(key, session), CheckMissing(key), Lock(key, value,
					session), Unlock(key, value, session),
			} {
				sent, err := json.Marshal(&api.TxnOp{KV: &o.kv})
				if err != nil {
					t.Fatal(err)
				}
				if len(sent)+1 > o.Bytes() {
					t.Errorf("%s with a value of %d: %d bytes with its comma, said %d", o.kv.Verb, len(value),
						len(sent)+1, o.Bytes())
				}
			}
		}
	}
}

// A key of a reading that is also one of its prefixes is read once.
func TestAKeyThatIsAPrefixIsSentOnce(t *testing.T) {
	t.Parallel()
	alone := Reading{Keys: []string{"bells/u"}, Prefixes: []string{"rcs/u", "rollouts/u"}}
	both := Reading{Keys: []string{"bells/u", "rcs/u", "rollouts/u"}, Prefixes: alone.Prefixes}
	if got, want := both.ops(), alone.ops(); !reflect.DeepEqual(got, want) {
		t.Errorf("sent %+v, want %+v", got, want)
	}
	seen := map[string]bool{}
	for _, o := range both.ops() {
		verb := string(o.kv.Verb) + " " + o.Key()
		if seen[verb] {
			t.Errorf("%s is sent twice", verb)
		}
		seen[verb] = true
	}
	apart := Reading{Keys: both.Keys, Prefixes: []string{"rcs/u/", "rollouts/u/"}}
	if len(apart.ops()) != len(both.ops())+2 {
		t.Errorf("%d operations, and %d where nothing is twice", len(both.ops()), len(apart.ops()))
	}
}
