package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/rcfarm/rcfarm/integration/cluster"
)

// ticksPerSecond is the unit of the times in /proc, on all of Go's Linux platforms.
const ticksPerSecond = 100

func cpu(pid int) (time.Duration, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The second field, in parentheses, may hold spaces.
	_, rest, _ := strings.Cut(string(data), ") ")
	fields := strings.Fields(rest)
	const user, system = 11, 12 // indices of the fields after the second
	if len(fields) <= system {
		return 0, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields))
	}
	var ticks int64
	for _, f := range []string{fields[user], fields[system]} {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / ticksPerSecond, nil
}

func rss(pid int) (int64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if text, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, err := strconv.ParseInt(strings.Fields(text)[0], 10, 64)
			return kb * 1024, err
		}
	}
	return 0, fmt.Errorf("/proc/%d/status has no VmRSS", pid)
}

type requests struct {
	liveness float64 // sessions and checks
	others   float64
	byPath   map[string]float64
}

// requestsOf reads Consul's telemetry, which counts a standing query at its answer.
func requestsOf(ctx context.Context, addr string) (requests, error) {
	page, err := cluster.Get(ctx, "http://"+addr+"/v1/agent/metrics?format=prometheus")
	if err != nil {
		return requests{}, err
	}
	r := requests{byPath: map[string]float64{}}
	lines := bufio.NewScanner(strings.NewReader(page))
	for lines.Scan() {
		labels, ok := strings.CutPrefix(lines.Text(), "consul_api_http_count{")
		if !ok {
			continue
		}
		labels, count, _ := strings.Cut(labels, "} ")
		n, err := strconv.ParseFloat(count, 64)
		if err != nil {
			return requests{}, fmt.Errorf("telemetry of %s: %w", addr, err)
		}
		r.byPath[labels] = n
		switch {
		case strings.Contains(labels, "v1_session_"), strings.Contains(labels, "v1_agent_check_"):
			r.liveness += n
		case strings.Contains(labels, "v1_agent_metrics"): // ours
		default:
			r.others += n
		}
	}
	return r, lines.Err()
}
