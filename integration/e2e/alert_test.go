package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"

	"github.com/rcfarm/rcfarm/pkg/farm/alert"
	"github.com/rcfarm/rcfarm/pkg/rc"
)

type pager struct {
	*httptest.Server
	mu     sync.Mutex
	answer func(http.ResponseWriter)
	asked  int             // since the answer was changed
	took   []alert.Message // messages that were answered with a status of 2xx
	lost   int             // requests that followed a redirect
}

func newPager(e *env) *pager {
	p := &pager{}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var m alert.Message
		err := json.NewDecoder(r.Body).Decode(&m)
		p.mu.Lock()
		p.asked++
		answer := p.answer
		switch {
		case r.URL.Path != "/hooks/s3cret":
			p.lost++
		case err != nil || r.Method != http.MethodPost || r.Header.Get("Content-Type") != "application/json":
			e.t.Errorf("%s %+v, %v", r.Method, m, err)
		case answer == nil:
			p.took = append(p.took, m)
		}
		p.mu.Unlock()
		if answer != nil {
			answer(w)
		}
	}))
	e.t.Cleanup(p.Close)
	return p
}

// answers sets how the receiver answers; nil: it accepts every message.
func (p *pager) answers(answer func(http.ResponseWriter)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answer, p.asked = answer, 0
}

func (p *pager) wasAsked(n int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.asked < n {
		return fmt.Errorf("asked %d times, want %d", p.asked, n)
	}
	return nil
}

// has returns an error until such a message was accepted, and then the incident's key.
func (p *pager) has(kind rc.ConditionType, status string) (key string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.IndexFunc(p.took, func(m alert.Message) bool { return m.Kind == string(kind) && m.Status == status })
	if i < 0 {
		return "", fmt.Errorf("it took %+v, nothing that is %s about %s", p.took, status, kind)
	}
	return p.took[i].Key, nil
}

// alertWebhook: a receiver of alerts fails, hangs, redirects and is cut off. Meanwhile the farm continues its looks,
// and no alert counts as sent. A farm is killed after the receiver has accepted an alert, and before the farm has
// stored that. The restarted farm sends the alert again with the same key, and later sends the end of the incident.
func alertWebhook(e *env) {
	e.startConsul("")
	p := newPager(e)
	secret := p.URL + "/hooks/s3cret"
	e.environ = []string{"RCFARM_ALERT_WEBHOOK=" + secret}
	f1 := e.farm("f1", "")
	p.answers(func(w http.ResponseWriter) { w.WriteHeader(http.StatusInternalServerError) })
	e.apply(e.hello(1, nil)) // there is no node
	id := e.rcID("hello")
	untold := func(st *rc.Status) bool {
		return slices.ContainsFunc(st.Incidents, func(i rc.Incident) bool {
			return i.Type == rc.InsufficientNodes && i.AlertedAt == nil
		})
	}
	e.within(limit, func() error { return p.wasAsked(2) })
	e.statusIs(id, untold)

	hung := make(chan struct{})
	free := sync.OnceFunc(func() { close(hung) })
	e.t.Cleanup(free) // before the server is closed
	p.answers(func(w http.ResponseWriter) { <-hung; w.WriteHeader(http.StatusInternalServerError) })
	e.within(limit, func() error { return p.wasAsked(1) })
	e.rcctl("", "rc", "scale", "hello", "2")
	e.statusIs(id, func(st *rc.Status) bool { return st.Desired == 2 && untold(st) })
	e.within(limit, func() error { return p.wasAsked(2) }) // the farm gave up the first request

	p.answers(func(w http.ResponseWriter) {
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(http.StatusTemporaryRedirect)
	})
	free()
	e.within(limit, func() error { return p.wasAsked(1) })
	p.answers(func(w http.ResponseWriter) {
		if conn, _, err := w.(http.Hijacker).Hijack(); err == nil {
			conn.Close()
		}
	})
	e.within(limit, func() error { return p.wasAsked(1) })
	e.statusIs(id, untold)
	if _, metrics, err := f1.asked("/metrics"); err != nil ||
		!strings.Contains(metrics, "rcfarm_farm_alerts_pending 1\n") ||
		!strings.Contains(metrics, `rcfarm_farm_alert_deliveries_total{outcome="delivered"} 0`) {
		e.t.Errorf("%v, metrics\n%s", err, metrics)
	}

	killed := make(chan struct{})
	p.answers(func(http.ResponseWriter) {
		f1.kill()
		p.answers(nil)
		close(killed)
	})
	<-killed
	e.statusIs(id, untold)
	f1.startAgain()
	var key string
	e.within(limit, func() (err error) { key, err = p.has(rc.InsufficientNodes, alert.Firing); return err })
	e.statusIs(id, func(st *rc.Status) bool {
		return slices.ContainsFunc(st.Incidents, func(i rc.Incident) bool { return i.Key == key && i.AlertedAt != nil })
	})

	e.preparer(1)
	e.preparer(2)
	e.within(limit, func() error {
		of, err := p.has(rc.InsufficientNodes, alert.Resolved)
		if err == nil && of != key {
			err = fmt.Errorf("the end of %s was told as that of %s", key, of)
		}
		return err
	})
	e.statusIs(id, func(st *rc.Status) bool { return len(st.Incidents) == 0 })
	e.within(limit, func() error { return e.availableAll(id, 2) })
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lost > 0 {
		e.t.Errorf("a redirect was followed %d times", p.lost)
	}
	if text := f1.logText(); strings.Contains(text, "s3cret") || strings.Count(text, "does not accept alerts") != 1 {
		e.t.Errorf("the log says the secret, or complains more than once:\n%s", text)
	}
}
