// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// destination finds what --to names: ADDRESS:PORT as it is, else [pod/|service/][NAMESPACE/]NAME:PORT,
// a Service before a pod. What netfilter would make of a Service's address is a pod behind it.
func (s *system) destination(ctx context.Context, from *corev1.Pod, to string) (address netip.AddrPort, note string, err error) {
	if parsed, err := netip.ParseAddrPort(to); err == nil {
		return parsed, "", nil
	}
	name, port, err := net.SplitHostPort(to)
	if err != nil {
		return address, "", fmt.Errorf("--to: must be ADDRESS:PORT, or the name of a Service or pod with a port: %w", err)
	}
	kind, namespace, name := splitName(name, from.Namespace)
	if kind != "pod" {
		service, err := s.core.CoreV1().Services(namespace).Get(ctx, name, metav1.GetOptions{})
		if err == nil {
			return s.behind(ctx, from, service, port)
		}
		if kind != "" || !apierrors.IsNotFound(err) {
			return address, "", fmt.Errorf("--to: reading Service %s/%s: %w", namespace, name, err)
		}
	}
	pod, err := s.core.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return address, "", fmt.Errorf("--to: reading pod %s/%s: %w", namespace, name, err)
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return address, "", fmt.Errorf("--to: the port of a pod must be a number: %w", err)
	}
	for _, ip := range pod.Status.PodIPs {
		if own, err := netip.ParseAddr(ip.IP); err == nil && own.Is4() == isIPv4(from) {
			return netip.AddrPortFrom(own, uint16(number)), "", nil
		}
	}
	return address, "", fmt.Errorf("--to: pod %s/%s has no address of the same version as %s", namespace, name, from.Name)
}

// splitName reads [KIND/][NAMESPACE/]NAME; kind is pod, service or empty.
func splitName(text, own string) (kind, namespace, name string) {
	parts := strings.Split(text, "/")
	switch parts[0] {
	case "svc", "service", "services":
		kind, parts = "service", parts[1:]
	case "po", "pod", "pods":
		kind, parts = "pod", parts[1:]
	}
	if len(parts) > 1 {
		return kind, parts[0], strings.Join(parts[1:], "/")
	}
	return kind, own, strings.Join(parts, "/")
}

func isIPv4(pod *corev1.Pod) bool {
	own, err := netip.ParseAddr(pod.Status.PodIPs[0].IP)
	return err == nil && own.Is4()
}

// behind is the first ready pod behind a Service.
func (s *system) behind(ctx context.Context, from *corev1.Pod, service *corev1.Service, port string) (netip.AddrPort, string, error) {
	var none netip.AddrPort
	slices, err := s.core.DiscoveryV1().EndpointSlices(service.Namespace).List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + service.Name})
	if err != nil {
		return none, "", fmt.Errorf("--to: reading the endpoints of Service %s/%s: %w", service.Namespace, service.Name, err)
	}
	name, known := portName(service, port)
	if !known {
		return none, "", fmt.Errorf("--to: Service %s/%s has no port %s", service.Namespace, service.Name, port)
	}
	for i := range slices.Items {
		if found, pod := readyIn(&slices.Items[i], name, isIPv4(from)); found.IsValid() {
			return found, fmt.Sprintf("Service %s/%s:%s leads to %s%s", service.Namespace, service.Name, port, found, pod), nil
		}
	}
	return none, "", fmt.Errorf("--to: no pod behind Service %s/%s is ready", service.Namespace, service.Name)
}

// portName is how a Service's port, given by number or name, is called in its endpoints.
func portName(service *corev1.Service, port string) (name string, known bool) {
	for i := range service.Spec.Ports {
		if one := &service.Spec.Ports[i]; one.Name == port || strconv.Itoa(int(one.Port)) == port {
			return one.Name, true
		}
	}
	return "", false
}

func readyIn(slice *discoveryv1.EndpointSlice, port string, v4 bool) (found netip.AddrPort, pod string) {
	var number int32
	for _, one := range slice.Ports {
		if one.Port != nil && (one.Name == nil && port == "" || one.Name != nil && *one.Name == port) {
			number = *one.Port
		}
	}
	for i := range slice.Endpoints {
		endpoint := &slice.Endpoints[i]
		if number == 0 || endpoint.Conditions.Ready != nil && !*endpoint.Conditions.Ready || len(endpoint.Addresses) == 0 {
			continue
		}
		address, err := netip.ParseAddr(endpoint.Addresses[0])
		if err != nil || address.Is4() != v4 {
			continue
		}
		if target := endpoint.TargetRef; target != nil {
			pod = ", pod " + cmp.Or(target.Name, "?")
		}
		return netip.AddrPortFrom(address, uint16(number)), pod
	}
	return netip.AddrPort{}, ""
}
