package field

// Bounds of one pod.
const (
	MaxLaunchables = 16
	MaxPorts       = 32
	MaxPort        = 65535
	MaxLabels      = 64        // in one set of labels
	MaxTextBytes   = 4096      // one argument, environment value, path or URL
	MaxCPU         = 1_000_000 // thousandths of a core, one process
	MaxMemory      = 1 << 50   // bytes, one process
	DigestLength   = 64        // hex digits

	MaxPodCPU    = MaxLaunchables * MaxCPU    // thousandths of a core, all processes of a pod
	MaxPodMemory = MaxLaunchables * MaxMemory // bytes, all processes of a pod
)
