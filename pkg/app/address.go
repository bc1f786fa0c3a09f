package app

import (
	"errors"
	"net"
	"syscall"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// checkAddress allows an address that the machine does not have, because it may be mapped to the machine, or come when
// the network is up. Both are impossible for a loopback address.
func checkAddress(errs *field.Errors, text string) {
	ip := net.ParseIP(text)
	if ip == nil || ip.IsUnspecified() || ip.IsMulticast() || ip.IsLoopback() && !onMachine(text) {
		errs.Add("address", text, "an IP address of this machine that pods can listen on, such as 10.0.3.17")
	}
}

// onMachine reports whether a program can listen on an address. It asks the kernel.
func onMachine(ip string) bool {
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(ip)})
	if err == nil {
		_ = conn.Close() // nothing was sent
	}
	return !errors.Is(err, syscall.EADDRNOTAVAIL)
}
