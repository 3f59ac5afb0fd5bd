{{- /* The objects of one file of objects/, with the values put in. */}}
{{- define "shardmill.objects" }}
{{- $root := .root }}
{{- range splitList "\n---\n" ($root.Files.Get (printf "objects/%s.yaml" .file)) }}
{{- $made := fromYaml . }}
{{- include "shardmill.place" (dict "made" $made "root" $root) }}
{{- if has $made.kind (list "Deployment" "ScaledJob") }}
{{- $template := dig "spec" "jobTargetRef" "template" $made.spec.template $made }}
{{- $worker := eq $made.metadata.name "shardmill-pool" }}
{{- include "shardmill.pod" (dict "pod" $template.spec "root" $root "worker" $worker) }}
{{- range $template.spec.containers }}
{{- include "shardmill.container" (dict "container" . "root" $root "worker" $worker) }}
{{- end }}
{{- else if has $made.kind (list "WorkflowTemplate" "CronWorkflow") }}
{{- $flow := $made.spec.workflowSpec | default $made.spec }}
{{- include "shardmill.pod" (dict "pod" $flow "root" $root) }}
{{- range $flow.templates }}
{{- if .container }}
{{- $worker := not (has "--device=cpu" .container.args) | and (hasKey (dig "resources" "limits" dict .container) "nvidia.com/gpu") }}
{{- if $worker }}
{{- include "shardmill.nodes" (dict "pod" . "root" $root) }}
{{- end }}
{{- include "shardmill.container" (dict "container" .container "root" $root "worker" $worker) }}
{{- end }}
{{- end }}
{{- end }}
---
{{ toYaml $made }}
{{- end }}
{{- end }}

{{- /* Namespace, addresses, sizes of the pool, and the user's annotations of accounts. */}}
{{- define "shardmill.place" }}
{{- $made := .made }}
{{- $space := .root.Release.Namespace }}
{{- $values := .root.Values }}
{{- if hasPrefix "Cluster" $made.kind }}
{{- $_ := set $made.metadata "name" (printf "%s-%s" $made.metadata.name $space) }}
{{- if $made.roleRef }}
{{- $_ := set $made.roleRef "name" $made.metadata.name }}
{{- end }}
{{- else }}
{{- $_ := set $made.metadata "namespace" $space }}
{{- end }}
{{- range $made.subjects }}
{{- $_ := set . "namespace" $space }}
{{- end }}
{{- if and (eq $made.kind "ServiceAccount") (ne $made.metadata.name "shardmill-submitter") $values.accounts.annotations }}
{{- $_ := set $made.metadata "annotations" $values.accounts.annotations }}
{{- end }}
{{- if eq $made.kind "ScaledJob" }}
{{- $_ := set $made.spec "maxReplicaCount" (int $values.workers.most) }}
{{- range $made.spec.triggers }}
{{- $_ := set .metadata "url" (replace ".shardmill.svc" (printf ".%s.svc" $space) .metadata.url) }}
{{- $_ := set .metadata "targetValue" (toString $values.workers.shardsPerWorker) }}
{{- end }}
{{- else if eq $made.kind "HorizontalPodAutoscaler" }}
{{- $_ := set $made.spec "maxReplicas" (int $values.workers.most) }}
{{- range $made.spec.metrics }}
{{- $_ := set .external.target "averageValue" (toString $values.workers.shardsPerWorker) }}
{{- end }}
{{- else if eq $made.kind "NetworkPolicy" }}
{{- range $made.spec.ingress }}
{{- range .from }}
{{- range .namespaceSelector.matchExpressions }}
{{- $_ := set . "values" $values.monitor.allowedNamespaces }}
{{- end }}
{{- end }}
{{- end }}
{{- else if eq $made.kind "CronWorkflow" }}
{{- $nightly := $values.argo.nightly }}
{{- $_ := set $made.spec "schedules" (list $nightly.schedule) }}
{{- $_ := set $made.spec "suspend" false }}
{{- range $made.spec.workflowSpec.arguments.parameters }}
{{- $_ := set . "value" (get $nightly.parameters .name | default (has .name (list "source" "text" "model" "run" "merged") | ternary "" .value)) }}
{{- if and (not .value) (has .name (list "source" "text" "model" "run" "merged")) }}
{{- fail (printf "argo.nightly.parameters has no %s." .name) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- /* What pods of all kinds have. */}}
{{- define "shardmill.pod" }}
{{- $values := .root.Values }}
{{- with $values.image.pullSecret }}
{{- $_ := set $.pod "imagePullSecrets" (list (dict "name" .)) }}
{{- end }}
{{- if $values.openshift }}
{{- $_ := set .pod "securityContext" (omit .pod.securityContext "runAsUser" "runAsGroup" "fsGroup") }}
{{- end }}
{{- if .worker }}
{{- include "shardmill.nodes" . }}
{{- with $values.workers.priorityClass }}
{{- $_ := set $.pod "priorityClassName" . }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Which nodes a worker may have. */}}
{{- define "shardmill.nodes" }}
{{- $workers := .root.Values.workers }}
{{- with $workers.nodeSelector }}
{{- $_ := set $.pod "nodeSelector" . }}
{{- end }}
{{- with $workers.affinity }}
{{- $_ := set $.pod "affinity" . }}
{{- end }}
{{- $gpus := list }}
{{- $usual := hasPrefix "nvidia.com/" $workers.gpuResource | ternary (list "nvidia.com/gpu") list }}
{{- range concat (list $workers.gpuResource) $usual | uniq }}
{{- $gpus = append $gpus (dict "key" . "operator" "Exists" "effect" "NoSchedule") }}
{{- end }}
{{- $tolerations := concat (eq $workers.device "cuda" | ternary $gpus list) $workers.tolerations }}
{{- if $tolerations }}
{{- $_ := set .pod "tolerations" $tolerations }}
{{- else }}
{{- $_ := unset .pod "tolerations" }}
{{- end }}
{{- end }}

{{- /* Image, variables and size of a container. */}}
{{- define "shardmill.container" }}
{{- $root := .root }}
{{- $values := .root.Values }}
{{- $made := .container }}
{{- $_ := set $made "image" (include (.worker | ternary "shardmill.image" "shardmill.lightImage") .root) }}
{{- $_ := set $made "imagePullPolicy" $values.image.pullPolicy }}
{{- range $name, $value := $values.env }}
{{- $_ := set $made "env" (append $made.env (dict "name" $name "value" $value)) }}
{{- end }}
{{- if $values.secret }}
{{- $_ := set $made "envFrom" (list (dict "secretRef" (dict "name" $values.secret "optional" true))) }}
{{- else }}
{{- $_ := unset $made "envFrom" }}
{{- end }}
{{- if .worker }}
{{- $gpu := eq $values.workers.device "cuda" | ternary (dict $values.workers.gpuResource "1") dict }}
{{- $memory := dict "memory" $values.workers.memory }}
{{- $disk := $values.workers.disk | empty | ternary dict (dict "ephemeral-storage" $values.workers.disk) }}
{{- $requests := merge (dict "cpu" $values.workers.cpu) $memory $disk $gpu }}
{{- $_ := set $made "resources" (dict "requests" $requests "limits" (merge dict $memory $gpu)) }}
{{- end }}
{{- $device := $values.workers.device }}
{{- $arguments := list }}
{{- range $made.args }}
{{- $said := replace ".shardmill.svc" (printf ".%s.svc" $root.Release.Namespace) . }}
{{- $said = eq . "--device=cuda" | ternary (printf "--device=%s" $device) $said }}
{{- $said = eq . "cuda" | ternary $device $said }}
{{- $arguments = append $arguments $said }}
{{- end }}
{{- $_ := set $made "args" $arguments }}
{{- end }}

{{- define "shardmill.image" -}}
{{- include "shardmill.reference" (dict "image" .Values.image "root" .) -}}
{{- end }}

{{- define "shardmill.lightImage" -}}
{{- include "shardmill.reference" (dict "image" (.Values.lightImage.repository | empty | ternary .Values.image .Values.lightImage) "root" .) -}}
{{- end }}

{{- /* An image of the one registry. */}}
{{- define "shardmill.reference" -}}
{{- $registry := .root.Values.image.registry -}}
{{- $name := $registry | empty | ternary .image.repository (printf "%s/%s" $registry .image.repository) -}}
{{- .image.digest | empty | ternary (printf "%s:%s" $name (.image.tag | default .root.Chart.AppVersion)) (printf "%s@%s" $name .image.digest) -}}
{{- end }}
