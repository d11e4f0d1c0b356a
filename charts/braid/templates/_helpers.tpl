{{/* SPDX-License-Identifier: Apache-2.0 */}}

{{/* Labels of every object. */}}
{{- define "braid.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: braid
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{/* What selects the pods of a component: (dict "component" "agent" "root" $). */}}
{{- define "braid.selector" -}}
app.kubernetes.io/name: braid-{{ .component }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- end }}

{{/* The image of a component, by its digest where there is one: (dict "root" $ "component" "agent"). */}}
{{- define "braid.image" -}}
{{ .root.Values.image.registry }}/{{ (index .root.Values .component).image }}
{{- with index .root.Values.image.digests .component }}@{{ . }}{{ else }}:{{ .root.Values.image.tag | default .root.Chart.AppVersion }}{{ end }}
{{- end }}

{{/* A file of the manifests in config/, for the release's namespace. */}}
{{- define "braid.file" -}}
{{ .root.Files.Get .file | replace "braid-system" .root.Release.Namespace }}
{{- end }}
