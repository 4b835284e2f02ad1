"""Where a watch tells what it found: the record, webhooks, Alertmanager. Each is an `Outlet`."""

from collections.abc import Sequence

from holdfast.diagnose import recorded
from holdfast.diagnose.alertmanager import Alertmanager
from holdfast.diagnose.alerts import alert
from holdfast.diagnose.incident import Incident
from holdfast.diagnose.lifecycle import IncidentChange
from holdfast.diagnose.webhook import Webhook
from holdfast.record.recorder import Recorder


class RecordOutlet:
    """Writes each change into the record."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def changed(self, change: IncidentChange) -> None:
        recorded.write(self._recorder, change)

    def standing(self, incidents: Sequence[Incident]) -> None: ...


class WebhookOutlet:
    """Sends each change to a webhook."""

    def __init__(self, webhook: Webhook) -> None:
        self._webhook = webhook

    def changed(self, change: IncidentChange) -> None:
        self._webhook.send(change)

    def standing(self, incidents: Sequence[Incident]) -> None: ...


class AlertmanagerOutlet:
    """Keeps an Alertmanager's alerts those that are open."""

    def __init__(self, channel: Alertmanager) -> None:
        self._channel = channel

    def changed(self, change: IncidentChange) -> None: ...

    def standing(self, incidents: Sequence[Incident]) -> None:
        self._channel.hold(alert(incident) for incident in incidents)
