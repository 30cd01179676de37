# ByteRobust, Fig. 7: a machine stalls in the backward pass of its pipeline; TP=2, PP=4, DP=4
   0.0 < hang_suspected
   0.5 < hang_found [gpu-15 gpu-3 gpu-7 gpu-11]: ranks 6-7, 14-15, 22-23, 30-31 differ from most (by function), and 32 of 32 ranks wait for others (reduce_scatter_tensor, irecv, isend); they share the pp group of machines gpu-3, gpu-7, gpu-11, gpu-15 (machines gpu-3, gpu-7, gpu-11, gpu-15); the evidence names no single machine
   0.5 < incident_opened [hang] because no progress for 51.0 s after step 350; ...
   0.5 < nodes_requested [4] because to replace gpu-15, gpu-3, gpu-7, gpu-11; they leave once these are there: no progress for 51.0 s after step 350; ...; one of gpu-15, gpu-3, gpu-7, gpu-11 blocks the others
   0.5 < nodes_granted to train-1: gpu-16@1 gpu-17@1 gpu-18@1 gpu-19@1
   0.5 < eviction gpu-15 (one of gpu-15 gpu-3 gpu-7 gpu-11) because no progress for 51.0 s after step 350; ...; one of gpu-15, gpu-3, gpu-7, gpu-11 blocks the others
   0.5 < eviction gpu-3 (one of gpu-15 gpu-3 gpu-7 gpu-11) because no progress for 51.0 s after step 350; ...; one of gpu-15, gpu-3, gpu-7, gpu-11 blocks the others
   0.5 < eviction gpu-7 (one of gpu-15 gpu-3 gpu-7 gpu-11) because no progress for 51.0 s after step 350; ...; one of gpu-15, gpu-3, gpu-7, gpu-11 blocks the others
   0.5 < eviction gpu-11 (one of gpu-15 gpu-3 gpu-7 gpu-11) because no progress for 51.0 s after step 350; ...; one of gpu-15, gpu-3, gpu-7, gpu-11 blocks the others
   0.5 < generation_started [gpu-0 gpu-1 gpu-2 gpu-16 gpu-4 gpu-5 gpu-6 gpu-17 gpu-8 gpu-9 gpu-10 gpu-18 gpu-12 gpu-13 gpu-14 gpu-19] because gpu-15, gpu-3, gpu-7, gpu-11 left the job: no progress for 51.0 s after step 350; ...; one of gpu-15, gpu-3, gpu-7, gpu-11 blocks the others
   0.5 < job_submitted because asked by the controller: gpu-15, gpu-3, gpu-7, gpu-11 left train-1 because one of them is at fault
   0.5 < nodes_requested [4] only gpu-15 gpu-3 gpu-7 gpu-11 because the tests need the nodes
   0.5 < nodes_granted to retest-87305201ba5b: gpu-3@2 gpu-7@2 gpu-11@2 gpu-15@2
   0.5 < generation_started [gpu-3 gpu-7 gpu-11 gpu-15] because gpu-3, gpu-7, gpu-11, gpu-15 joined; all 4 nodes are present
  29.9 < incident_closed [recovered] because step 351 completed, past step 350 at which the job had failed
  60.7 < job_finished [completed] because every rank exited with code 0
  60.7 < suspects_tested because gpu-15 is at fault: gemm failed: differs (silent_stall); may come back: gpu-3, gpu-7, gpu-11; tests found no fault on 3 of 4 evicted nodes, which were out for 60 s; the pool lacked 180 node-seconds
  60.7 < eviction_revoked gpu-3 because it passed the tests that followed its eviction (retest-87305201ba5b)
  60.7 < eviction_revoked gpu-7 because it passed the tests that followed its eviction (retest-87305201ba5b)
  60.7 < eviction_revoked gpu-11 because it passed the tests that followed its eviction (retest-87305201ba5b)
= gpu-15: evicted
= gpu-3: standby
= gpu-7: standby
= gpu-11: standby
