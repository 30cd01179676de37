# ByteRobust, 9: pipelines of eight machines, one of which stalls
   0.0 < hang_suspected
   0.5 < hang_found [gpu-18 gpu-2 gpu-6 gpu-10 gpu-14 gpu-22 gpu-26 gpu-30]: ranks 16-23, 48-55, 80-87, 112-119, 144-151, 176-183, 208-215, 240-247 differ from most (by function), and 256 of 256 ranks wait for others (reduce_scatter_tensor, irecv, isend); they share the pp group of machines gpu-2, gpu-6, gpu-10, gpu-14, gpu-18, gpu-22, gpu-26, gpu-30 (machines gpu-2, gpu-6, gpu-10, gpu-14, gpu-18, gpu-22, gpu-26, gpu-30); the evidence names no single machine
   0.5 < incident_opened [hang] because no progress for 51.0 s after step 350; ...
   0.5 < nodes_requested [8] because to replace gpu-18, gpu-2, gpu-6, gpu-10, gpu-14, gpu-22, gpu-26, gpu-30; they leave once these are there: no progress for 51.0 s after step 350; ...; one of gpu-18, gpu-2, gpu-6, gpu-10, gpu-14, gpu-22, gpu-26, gpu-30 blocks the others
   0.5 < nodes_granted to train-1: gpu-32@1 gpu-33@1 gpu-34@1 gpu-35@1 gpu-36@1 gpu-37@1 gpu-38@1 gpu-39@1
   0.5 < eviction gpu-18 (one of gpu-18 gpu-2 gpu-6 gpu-10 gpu-14 gpu-22 gpu-26 gpu-30) because no progress for 51.0 s after step 350; ...; one of gpu-18, gpu-2, gpu-6, gpu-10, gpu-14, gpu-22, gpu-26, gpu-30 blocks the others
   0.5 < eviction gpu-2 (one of gpu-18 gpu-2 gpu-6 gpu-10 gpu-14 gpu-22 gpu-26 gpu-30) because no progress for 51.0 s after step 350; ...; one of gpu-18, gpu-2, gpu-6, gpu-10, gpu-14, gpu-22, gpu-26, gpu-30 blocks the others
   0.5 < eviction gpu-6 (one of gpu-18 gpu-2 gpu-6 gpu-10 gpu-14 gpu-22 gpu-26 gpu-30) because no progress for 51.0 s after step 350; ...; one of gpu-18, gpu-2, gpu-6, gpu-10, gpu-14, gpu-22, gpu-26, gpu-30 blocks the others
   0.5 < eviction gpu-10 (one of gpu-18 gpu-2 gpu-6 gpu-10 gpu-14 gpu-22 gpu-26 gpu-30) because no progress for 51.0 s after step 350; ...; one of gpu-18, gpu-2, gpu-6, gpu-10, gpu-14, gpu-22, gpu-26, gpu-30 blocks the others
   0.5 < eviction gpu-14 (one of gpu-18 gpu-2 gpu-6 gpu-10 gpu-14 gpu-22 gpu-26 gpu-30) because no progress for 51.0 s after step 350; ...; one of gpu-18, gpu-2, gpu-6, gpu-10, gpu-14, gpu-22, gpu-26, gpu-30 blocks the others
   0.5 < eviction gpu-22 (one of gpu-18 gpu-2 gpu-6 gpu-10 gpu-14 gpu-22 gpu-26 gpu-30) because no progress for 51.0 s after step 350; ...; one of gpu-18, gpu-2, gpu-6, gpu-10, gpu-14, gpu-22, gpu-26, gpu-30 blocks the others
   0.5 < eviction gpu-26 (one of gpu-18 gpu-2 gpu-6 gpu-10 gpu-14 gpu-22 gpu-26 gpu-30) because no progress for 51.0 s after step 350; ...; one of gpu-18, gpu-2, gpu-6, gpu-10, gpu-14, gpu-22, gpu-26, gpu-30 blocks the others
   0.5 < eviction gpu-30 (one of gpu-18 gpu-2 gpu-6 gpu-10 gpu-14 gpu-22 gpu-26 gpu-30) because no progress for 51.0 s after step 350; ...; one of gpu-18, gpu-2, gpu-6, gpu-10, gpu-14, gpu-22, gpu-26, gpu-30 blocks the others
   0.5 < generation_started [gpu-0 gpu-1 gpu-32 gpu-3 gpu-4 gpu-5 gpu-33 gpu-7 gpu-8 gpu-9 gpu-34 gpu-11 gpu-12 gpu-13 gpu-35 gpu-15 gpu-16 gpu-17 gpu-36 gpu-19 gpu-20 gpu-21 gpu-37 gpu-23 gpu-24 gpu-25 gpu-38 gpu-27 gpu-28 gpu-29 gpu-39 gpu-31] because gpu-18, gpu-2, gpu-6, gpu-10, gpu-14, gpu-22, gpu-26, gpu-30 left the job: no progress for 51.0 s after step 350; ...; one of gpu-18, gpu-2, gpu-6, gpu-10, gpu-14, gpu-22, gpu-26, gpu-30 blocks the others
   0.5 < job_submitted because asked by the controller: gpu-18, gpu-2, gpu-6, gpu-10, gpu-14, gpu-22, gpu-26, gpu-30 left train-1 because one of them is at fault
   0.5 < nodes_requested [8] only gpu-18 gpu-2 gpu-6 gpu-10 gpu-14 gpu-22 gpu-26 gpu-30 because the tests need the nodes
   0.5 < nodes_granted to retest-7abe5a0e86eb: gpu-2@2 gpu-6@2 gpu-10@2 gpu-14@2 gpu-18@2 gpu-22@2 gpu-26@2 gpu-30@2
   0.5 < generation_started [gpu-2 gpu-6 gpu-10 gpu-14 gpu-18 gpu-22 gpu-26 gpu-30] because gpu-2, gpu-6, gpu-10, gpu-14, gpu-18, gpu-22, gpu-26, gpu-30 joined; all 8 nodes are present
  29.9 < incident_closed [recovered] because step 351 completed, past step 350 at which the job had failed
  59.7 < job_finished [completed] because every rank exited with code 0
  59.7 < suspects_tested because gpu-18 is at fault: gemm failed: differs (silent_stall); may come back: gpu-2, gpu-6, gpu-10, gpu-14, gpu-22, gpu-26, gpu-30; tests found no fault on 7 of 8 evicted nodes, which were out for 59 s; the pool lacked 415 node-seconds
  59.7 < eviction_revoked gpu-2 because it passed the tests that followed its eviction (retest-7abe5a0e86eb)
  59.7 < eviction_revoked gpu-6 because it passed the tests that followed its eviction (retest-7abe5a0e86eb)
  59.7 < eviction_revoked gpu-10 because it passed the tests that followed its eviction (retest-7abe5a0e86eb)
  59.7 < eviction_revoked gpu-14 because it passed the tests that followed its eviction (retest-7abe5a0e86eb)
  59.7 < eviction_revoked gpu-22 because it passed the tests that followed its eviction (retest-7abe5a0e86eb)
  59.7 < eviction_revoked gpu-26 because it passed the tests that followed its eviction (retest-7abe5a0e86eb)
  59.7 < eviction_revoked gpu-30 because it passed the tests that followed its eviction (retest-7abe5a0e86eb)
= gpu-18: evicted
= gpu-2: standby
= gpu-6: standby
= gpu-10: standby
= gpu-14: standby
= gpu-22: standby
= gpu-26: standby
= gpu-30: standby
