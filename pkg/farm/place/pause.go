package place

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// pause stops calls to a scheduler that did not answer in time, and lets one through at intervals.
type pause struct {
	mu    sync.Mutex
	err   error // why calls pause; nil: they do not
	until time.Time
}

var errPause = errors.New("it is asked again in a while")

func (p *pause) pass(now time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		return nil
	}
	if now.Before(p.until) {
		return fmt.Errorf("the scheduler: %w; %w", p.err, errPause)
	}
	p.until = now.Add(schedulerPause) // the others wait for this caller's result
	return nil
}

func (p *pause) hung(now time.Time, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err, p.until = err, now.Add(schedulerPause)
}

func (p *pause) answered() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = nil
}
