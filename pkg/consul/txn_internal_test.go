package consul

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/hashicorp/consul/api"
)

// Callers pack transactions by Bytes, so that it must never be less than what is sent.
func TestOpBytesIsAnUpperBound(t *testing.T) {
	t.Parallel()
	const index = math.MaxUint64
	session := strings.Repeat("s", 36)
	for _, key := range []string{"", "rcfarm/pods/x/y.0", "q\"\\<&>\u2028é\xff\x01\n"} {
		for _, value := range [][]byte{nil, {}, {1}, {1, 2}, {1, 2, 3}, make([]byte, 1000)} {
			for _, o := range []Op{
				Set(key, value), SetFlags(key, value, index), CAS(key, value, index), Delete(key), DeleteCAS(key, index),
				CheckIndex(key, index), CheckSession(key, session), CheckMissing(key), Lock(key, value, session), Unlock(key, value, session),
			} {
				sent, err := json.Marshal(&api.TxnOp{KV: &o.kv})
				if err != nil {
					t.Fatal(err)
				}
				if len(sent)+1 > o.Bytes() {
					t.Errorf("%s with a value of %d: %d bytes with its comma, said %d", o.kv.Verb, len(value), len(sent)+1, o.Bytes())
				}
			}
		}
	}
}
