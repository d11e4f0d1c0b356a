// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
)

// streamingClient reads plan after plan while the API server still writes the list: those of a
// large cluster are most of what there is, and others' clients begin when all has come.
type streamingClient struct {
	client.WithWatch
	plans rest.Interface
}

func newStreamingClient(c client.WithWatch, config *rest.Config) (*streamingClient, error) {
	config = rest.CopyConfig(config)
	config.GroupVersion, config.APIPath = &v1alpha1.GroupVersion, "/apis"
	config.NegotiatedSerializer = serializer.WithoutConversionCodecFactory{CodecFactory: scheme.Codecs}
	plans, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("reaching the API server: %w", err)
	}
	return &streamingClient{c, plans}, nil
}

// List reads all plans in this way, and anything else as ever.
func (c *streamingClient) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	plans, ok := list.(*v1alpha1.MPTCPNodePlanList)
	if !ok || len(options) > 0 {
		return c.WithWatch.List(ctx, list, options...)
	}
	answer, err := c.plans.Get().Resource("mptcpnodeplans").SetHeader("Accept", "application/json").Stream(ctx)
	if err != nil {
		return err
	}
	defer answer.Close()
	*plans = v1alpha1.MPTCPNodePlanList{}
	return decodeList(answer, plans)
}

// decodeList reads a list whose end may not have come yet. An object without its end is an
// error: a part of the plans must not pass for all of them.
func decodeList(from io.Reader, list *v1alpha1.MPTCPNodePlanList) error {
	decoder := json.NewDecoder(from)
	if err := expect(decoder, '{'); err != nil {
		return err
	}
	for decoder.More() {
		name, err := decoder.Token()
		if err != nil {
			return fmt.Errorf("reading a list: %w", err)
		}
		var into any = new(json.RawMessage)
		switch name {
		case "items":
			if err := decodeItems(decoder, list); err != nil {
				return err
			}
			continue
		case "metadata":
			into = &list.ListMeta
		}
		if err := decoder.Decode(into); err != nil {
			return fmt.Errorf("reading %v of a list: %w", name, err)
		}
	}
	return expect(decoder, '}')
}

func decodeItems(decoder *json.Decoder, list *v1alpha1.MPTCPNodePlanList) error {
	if err := expect(decoder, '['); err != nil {
		return err
	}
	for decoder.More() {
		list.Items = append(list.Items, v1alpha1.MPTCPNodePlan{})
		if err := decoder.Decode(&list.Items[len(list.Items)-1]); err != nil {
			return fmt.Errorf("reading an object of a list: %w", err)
		}
	}
	return expect(decoder, ']')
}

func expect(decoder *json.Decoder, delimiter json.Delim) error {
	token, err := decoder.Token()
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return fmt.Errorf("reading a list: %w", err)
	}
	if token != delimiter {
		return fmt.Errorf("reading a list: %v where %v was expected", token, delimiter)
	}
	return nil
}
