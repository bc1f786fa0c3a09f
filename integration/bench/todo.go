package main

import "context"

func failoverBench(ctx context.Context, b *bench) error { return nil }
func changeBench(ctx context.Context, b *bench) error   { return nil }
func idleBench(ctx context.Context, b *bench) error     { return nil }
func recoveryBench(ctx context.Context, b *bench) error { return nil }
func stormBench(ctx context.Context, b *bench) error    { return nil }
