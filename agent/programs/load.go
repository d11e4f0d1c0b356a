// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"

	"braid.dev/braid/api/v1alpha1"
)

// Program is a program that the kernel has verified and that is within its budget. It
// is not in use yet.
type Program struct {
	// Type is what the program is for.
	Type v1alpha1.ProgramType
	// Instructions is how many the verifier followed; 0 on kernels before 5.16,
	// which do not tell.
	Instructions uint32
	// Cost is what it takes for a packet in the median; 0 for other types than Action.
	Cost time.Duration

	collection *ebpf.Collection
	program    *ebpf.Program // of types Action and Schedule
	namespaces *ebpf.Map     // of type Schedule
	operations *ebpf.Map     // of type Congestion
	algorithm  string        // of type Congestion
}

// Map is a map of the program's own, or nil.
func (b *Program) Map(name string) *ebpf.Map { return b.collection.Maps[name] }

// Program is what runs; nil for type Congestion.
func (b *Program) Program() *ebpf.Program { return b.program }

// Close lets go of the program. Where it is in use it stays.
func (b *Program) Close() {
	if b != nil && b.collection != nil {
		b.collection.Close()
	}
}

// Load verifies the program of a compiled object for programs of the type; the name
// may be empty where the object holds one. The map is the block_context of the
// chains that shall call it, and is needed for type Action only. The shared maps take the
// places of the program's own. The error is a *Refusal when it is the program's fault.
func Load(ctx context.Context, source []byte, program string, kind v1alpha1.ProgramType, blockContext *ebpf.Map, shared ...Shared) (*Program, error) {
	spec, err := readObject(source)
	if err != nil {
		return nil, err
	}
	switch kind {
	case v1alpha1.ProgramAction, "":
		return loadAction(ctx, spec, program, blockContext, shared)
	case v1alpha1.ProgramSchedule:
		return loadSchedule(spec, program, shared)
	case v1alpha1.ProgramCongestion:
		return loadCongestion(spec, program, shared)
	}
	return nil, refuse("programs of type ", string(kind), " are not known")
}

// loadAction tries the program out on its own before it loads it for the chains: so
// the trial leaves nothing in its maps.
func loadAction(ctx context.Context, spec *ebpf.CollectionSpec, name string, blockContext *ebpf.Map, shared []Shared) (*Program, error) {
	chosen, err := onlyProgram(spec, name, ebpf.SchedCLS)
	if err != nil {
		return nil, err
	}
	// A program array takes programs of one attach type.
	chosen.AttachType = ebpf.AttachNone
	if err := errors.Join(judgeContext(spec), judgeMaps(spec, append(namesOf(shared), contextMap)...), judgeShared(spec, shared), judgeFunctions(chosen, actionFunctions)); err != nil {
		return nil, err
	}
	tried, err := tryAction(ctx, readOnlyViews(spec, shared), chosen.Name)
	if err != nil {
		return nil, err
	}
	replacements := mapsOf(shared)
	replacements[contextMap] = blockContext
	collection, err := loadWith(spec, replacements)
	if err != nil {
		return nil, err
	}
	tried.collection, tried.program = collection, collection.Programs[chosen.Name]
	return tried, nil
}

// tryAction returns what is known of a program after its trial; nothing stays loaded.
func tryAction(ctx context.Context, spec *ebpf.CollectionSpec, name string) (_ *Program, err error) {
	trial, err := newTrial()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, trial.close()) }()
	collection, err := loadWith(spec, map[string]*ebpf.Map{contextMap: trial.objects.BlockContext})
	if err != nil {
		return nil, err
	}
	defer collection.Close()
	tried := &Program{Type: v1alpha1.ProgramAction}
	program := collection.Programs[name]
	if tried.Instructions, err = judgeInstructions(program); err != nil {
		return nil, err
	}
	if tried.Cost, err = trial.cost(ctx, program); err != nil {
		return nil, err
	}
	if tried.Cost > MaxCost {
		return nil, refuse(fmt.Sprintf("it takes %v for a packet; a program may take %v", tried.Cost, MaxCost))
	}
	return tried, nil
}

func loadWith(spec *ebpf.CollectionSpec, replacements map[string]*ebpf.Map) (*ebpf.Collection, error) {
	collection, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: replacements})
	if err != nil {
		return nil, explain(err)
	}
	return collection, nil
}

// judgeInstructions holds the program to the budget of verified instructions.
func judgeInstructions(program *ebpf.Program) (uint32, error) {
	info, err := program.Info()
	if err != nil {
		return 0, fmt.Errorf("asking for what the verifier did: %w", err)
	}
	count, _ := info.VerifiedInstructions()
	if count > MaxInstructions {
		return 0, refuse(fmt.Sprintf("the verifier followed %d instructions; a program may have %d", count, MaxInstructions))
	}
	return count, nil
}
