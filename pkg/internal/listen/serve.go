package listen

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"
)

// Serve serves a listener until ctx ends, with TLS if the server has a configuration for it. Then it waits, at most for
// limit, until no request is under way, and returns nil. If the server ends earlier, Serve returns the reason.
func Serve(ctx context.Context, srv *http.Server, l net.Listener, limit time.Duration) error {
	served := make(chan error, 1)
	go func() {
		if srv.TLSConfig == nil {
			served <- srv.Serve(l)
		} else {
			served <- srv.ServeTLS(l, "", "")
		}
	}()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	if srv.Shutdown(end) != nil {
		_ = srv.Close()
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
