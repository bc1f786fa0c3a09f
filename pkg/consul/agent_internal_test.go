package consul

import "testing"

// What a check says that the agent itself could not run is about nobody else; what somebody answers may say anything.
func TestWhatSaysThatACheckFailed(t *testing.T) {
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
