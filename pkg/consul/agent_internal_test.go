package consul

import "testing"

// An output has the agent's own error if the agent could not run the check. A service's answer can contain any text.
func TestOutputsThatMeanAFailedCheck(t *testing.T) {
	t.Parallel()
	for output, want := range map[string]bool{
		"": false,
		"HTTP GET http://127.0.0.1:80/health: 503 Service Unavailable Output: too many open files\n":             true,
		`Get "http://127.0.0.1:80/": dial tcp 127.0.0.1:80: connect: connection refused`:                         true,
		`Get "http://127.0.0.1:80/": context deadline exceeded (Client.Timeout exceeded while awaiting headers)`: true,
		"dial tcp 127.0.0.1:80: i/o timeout":                                             true,
		`Get "http://127.0.0.1:80/": dial tcp 127.0.0.1:80: socket: too many open files`: false,
		"dial tcp 127.0.0.1:80: socket: cannot allocate memory":                          false,
		"dial tcp 127.0.0.1:80: connect: cannot assign requested address":                false,
	} {
		if got := saysFailed(output); got != want {
			t.Errorf("%q says that it failed: %t, want %t", output, got, want)
		}
	}
}
