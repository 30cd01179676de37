"""Anomalies in what machines and ranks are seen to do, without a word from the script (TRANSOM §IV-B, TEE). Pure.

Three detectors look at the same window of metrics, each by another trait of training: points lie where healthy points
lie (`lof`), a rank does again what it did before (`neighbor_profile`), and ranks do what the others do
(`rank_clusters`). Two votes of three are an anomaly (`vote`). What is healthy is learned from recorded history
(`training`); a model that does not pass its test is never used. `error_window` does the same for lines of trouble.
"""
