package rcctl

import (
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/rcfarm/rcfarm/pkg/consultest"
)

// If a selector matches only pods of one controller, rcctl reads no placements of other controllers.
func TestSelectorReadsOneController(t *testing.T) {
	s, prefix := testConn(t)
	r := create(t, s)
	proxy := consultest.StartProxy(t, consultest.Shared(t).Addr)
	var lock sync.Mutex
	var read []string
	proxy.Set(func(req *http.Request) consultest.Verdict {
		lock.Lock()
		defer lock.Unlock()
		if _, key, is := strings.Cut(req.URL.Path, "/v1/kv/"+prefix); is &&
			(strings.HasPrefix(key, "pods/") || strings.HasPrefix(key, "rcs/")) {
			read = append(read, key)
		}
		return consultest.Forward
	})
	code, _, errs := runAt(t.Context(), proxy.Addr, prefix, "", "pods", "-l", "replication_controller_id="+r.ID)
	if code != exitDone {
		t.Fatal(errs)
	}
	if len(read) == 0 {
		t.Fatal("nothing was read")
	}
	for _, key := range read {
		if !strings.Contains(key, r.ID) {
			t.Errorf("%s was read", key)
		}
	}
}
