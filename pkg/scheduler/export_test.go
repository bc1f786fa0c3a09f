package scheduler

// NodesWait is how long a pass waits for nodes that other passes have.
const NodesWait = nodesWait
