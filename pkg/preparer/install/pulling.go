package install

import (
	"fmt"
	"time"

	"github.com/rcfarm/rcfarm/pkg/preparer/image"
)

const (
	// pullReportEvery is how often a pull's report changes. Each change is a write to Consul.
	pullReportEvery = 2 * time.Second
	// pullStall is how long a pull may bring nothing and still count as progress. Registries ask for such pauses.
	pullStall = 30 * time.Second
)

// watchPull reports how far the pull of an image is until over is called. A pull of what is on the disk is too short
// for a report.
func (n *Node) watchPull(name, digest string, progress Progress) (over func()) {
	if progress == nil {
		return func() {}
	}
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		seen := arrival{changed: time.Now(), at: time.Now()}
		ticks := time.NewTicker(pullReportEvery)
		defer ticks.Stop()
		for {
			select {
			case <-done:
				return
			case now := <-ticks.C:
				if p, ok := n.cfg.Images.Progress(digest); ok {
					progress.Pulling(pullText(name, p), seen.see(p, now))
				}
			}
		}
	}()
	return func() {
		close(done)
		<-ended
		progress.Pulling("", 0)
	}
}

// arrival measures for how long a pull makes progress.
type arrival struct {
	last    image.Progress
	changed time.Time // when last became what it is
	at      time.Time // of the last call
}

// see returns the time since the last call, or zero if nothing has arrived for pullStall. When all has arrived, only
// the disk is waited for, and a large layer changes nothing for long.
func (a *arrival) see(p image.Progress, now time.Time) (arrived time.Duration) {
	arrived = now.Sub(a.at)
	if p != a.last {
		a.last, a.changed = p, now
	}
	a.at = now
	if unpacks := p.Layers > 0 && p.Done == p.Total; !unpacks && now.Sub(a.changed) >= pullStall {
		return 0
	}
	return arrived
}

// pullText is for people.
func pullText(name string, p image.Progress) string {
	const mega = 1_000_000
	switch {
	case p.Layers == 0:
		return fmt.Sprintf("pulling the image of %s: asking its registry", name)
	case p.Done == p.Total:
		return fmt.Sprintf("pulling the image of %s: %d of %d layers are unpacked", name, p.Unpacked, p.Layers)
	}
	return fmt.Sprintf("pulling %d of %d MB of the image of %s", p.Done/mega, (p.Total+mega-1)/mega, name)
}
