package app

import (
	"errors"
	"net"
	"syscall"

	"github.com/rcfarm/rcfarm/pkg/field"
)

// checkAddress records what is wrong with the address of a node. An address that the machine does not have is allowed,
// because it may be mapped to the machine or come when the network is up. A loopback address cannot.
func checkAddress(errs *field.Errors, text string) {
	ip := net.ParseIP(text)
	if ip == nil || ip.IsUnspecified() || ip.IsMulticast() || ip.IsLoopback() && !onMachine(text) {
		errs.Add("address", text, "an IP address of this machine that pods can listen on, such as 10.0.3.17")
	}
}

// onMachine reports whether a program of this machine can listen on an address, as far as the kernel says.
func onMachine(ip string) bool {
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(ip)})
	if err == nil {
		_ = conn.Close() // nothing was sent
	}
	return !errors.Is(err, syscall.EADDRNOTAVAIL)
}
