package consul_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rcfarm/rcfarm/pkg/consul"
	"github.com/rcfarm/rcfarm/pkg/consultest"
)

// The agent changes a check's state only after as many equal answers in a row as its thresholds say, by default one.
func TestThresholdsOfChecks(t *testing.T) {
	t.Parallel()
	c, _, prefix := setup(t)
	const toPassing, toCritical = "fpfpp", "fpfppppppffpfff"
	answers := &scripted{next: toCritical} // after these answers, the last one is repeated
	web := httptest.NewServer(answers)
	t.Cleanup(web.Close)
	id := strings.TrimSuffix(prefix, "/")
	err := c.Services.RegisterService(t.Context(), consul.Service{
		ID: id, Name: "web", Meta: map[string]string{"k": id},
		Check: &consul.Check{
			HTTP: web.URL, Interval: time.Second, Timeout: patience, SuccessThreshold: 2,
			FailureThreshold: 3,
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Services.DeregisterService(context.Background(), id) })
	passing(t, c, "k", id, map[string]bool{id: true})
	if given := answers.given(); !strings.HasPrefix(given, toPassing) {
		t.Errorf("passing after the answers %s, want two good ones in a row", given)
	}
	passing(t, c, "k", id, map[string]bool{id: false})
	if given := answers.given(); !strings.HasPrefix(given, toCritical) {
		t.Errorf("critical after the answers %s, want three bad ones in a row", given)
	}
}

// scripted answers in the order of next: p passes, f fails, and the last letter repeats for ever.
type scripted struct {
	mu   sync.Mutex
	next string
	done strings.Builder
}

func (s *scripted) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next[0] == 'f' {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	s.done.WriteByte(s.next[0])
	if len(s.next) > 1 {
		s.next = s.next[1:]
	}
}

func (s *scripted) given() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.done.String()
}

// A check has failed only if the agent has run it. Before, it is critical.
func TestAFreshCheckHasNotFailed(t *testing.T) {
	t.Parallel()
	c, _, prefix := setup(t)
	id := strings.TrimSuffix(prefix, "/")
	ill := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(ill.Close)
	const nobody = "127.0.0.1:1"
	checks := map[string]*consul.Check{
		// ^ The agent spreads the first runs over the interval.
		"-fresh": {HTTP: ill.URL, Interval: 1000 * time.Hour, Timeout: patience},
		"-ill":   {HTTP: ill.URL, Interval: time.Second, Timeout: patience},
		"-gone":  {HTTP: "http://" + nobody, Interval: time.Second, Timeout: patience},
		"-deaf":  {TCP: nobody, Interval: time.Second, Timeout: patience},
	}
	for suffix, check := range checks {
		if err := c.Services.RegisterService(t.Context(),
			consul.Service{ID: id + suffix, Name: "web", Meta: map[string]string{"k": id}, Check: check}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Services.DeregisterService(context.Background(), id+suffix) })
	}
	consultest.Eventually(t, patience, func() error {
		local, err := c.Services.LocalServices(t.Context(), "k", id)
		for suffix := range checks {
			if h := local[id+suffix]; err == nil && (h.Passing || h.Failed != (suffix != "-fresh")) {
				err = fmt.Errorf("%s is %+v", suffix, h)
			}
		}
		return err
	})
}

// A TTL check keeps its last state, and becomes critical when it is not updated any more.
func TestTTLCheck(t *testing.T) {
	t.Parallel()
	c, raw, prefix := setup(t)
	id := strings.TrimSuffix(prefix, "/")
	err := c.Services.RegisterService(t.Context(), consul.Service{
		ID: id, Name: "script", Meta: map[string]string{"k": id}, Check: &consul.Check{TTL: 2 * time.Second},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Services.DeregisterService(context.Background(), id) })
	passing(t, c, "k", id, map[string]bool{id: false})
	// On a slow machine the TTL may end before the read.
	consultest.Eventually(t, patience, func() error {
		if err := c.Services.UpdateCheck(t.Context(), id, true, "all is well"); err != nil {
			t.Fatal(err)
		}
		local, err := c.Services.LocalServices(t.Context(), "k", id)
		checks, otherErr := raw.Agent().ChecksWithFilter(fmt.Sprintf("ServiceID == `%s`", id))
		if err = errors.Join(err, otherErr); err == nil &&
			(!local[id].Passing || checks[consul.ServiceCheckID(id)].Output != "all is well") {
			err = fmt.Errorf("services %v, checks %v", local, checks)
		}
		return err
	})
	passing(t, c, "k", id, map[string]bool{id: false})
	if err := c.Services.UpdateCheck(t.Context(), id+"-other", true, ""); err == nil {
		t.Error("a check that is not there was updated")
	}
}
