"""Anomalies in metrics of machines and ranks, without help of the script (TRANSOM §IV-B, TEE). Pure.

Three detectors judge the same window of metrics, each by another property of training: points lie near healthy points
(`lof`), a rank repeats its past (`neighbor_profile`), and ranks behave alike (`rank_clusters`). Two of three votes are
an anomaly (`anomaly_vote`). The healthy state is learned from recorded history (`training`); a model that fails its
test is never used. `error_window` finds bursts of error lines.
"""
