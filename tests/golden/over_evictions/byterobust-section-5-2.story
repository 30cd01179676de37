# ByteRobust, 5.2: two machines of a pipeline of six stick in evaluation
   0.0 < hang_suspected
   0.5 < hang_found [gpu-13 gpu-21 gpu-29 gpu-37 gpu-5 gpu-45]: ranks 104-111, 168-175, 232-239, 296-303 differ from most (by function), and 384 of 384 ranks wait for others (barrier, broadcast, all_reduce); they share the pp group of machines gpu-5, gpu-13, gpu-21, gpu-29, gpu-37, gpu-45 (machines gpu-5, gpu-13, gpu-21, gpu-29, gpu-37, gpu-45); the evidence names no single machine
   0.5 < incident_opened [hang] because no progress for 51.0 s after step 350; ...
   0.5 < nodes_requested [6] because to replace gpu-13, gpu-21, gpu-29, gpu-37, gpu-5, gpu-45; they leave once these are there: no progress for 51.0 s after step 350; ...; one of gpu-13, gpu-21, gpu-29, gpu-37, gpu-5, gpu-45 blocks the others
   0.5 < nodes_granted to train-1: gpu-48@1 gpu-49@1 gpu-50@1 gpu-51@1 gpu-52@1 gpu-53@1
   0.5 < eviction gpu-13 (one of gpu-13 gpu-21 gpu-29 gpu-37 gpu-5 gpu-45) because no progress for 51.0 s after step 350; ...; one of gpu-13, gpu-21, gpu-29, gpu-37, gpu-5, gpu-45 blocks the others
   0.5 < eviction gpu-21 (one of gpu-13 gpu-21 gpu-29 gpu-37 gpu-5 gpu-45) because no progress for 51.0 s after step 350; ...; one of gpu-13, gpu-21, gpu-29, gpu-37, gpu-5, gpu-45 blocks the others
   0.5 < eviction gpu-29 (one of gpu-13 gpu-21 gpu-29 gpu-37 gpu-5 gpu-45) because no progress for 51.0 s after step 350; ...; one of gpu-13, gpu-21, gpu-29, gpu-37, gpu-5, gpu-45 blocks the others
   0.5 < eviction gpu-37 (one of gpu-13 gpu-21 gpu-29 gpu-37 gpu-5 gpu-45) because no progress for 51.0 s after step 350; ...; one of gpu-13, gpu-21, gpu-29, gpu-37, gpu-5, gpu-45 blocks the others
   0.5 < eviction gpu-5 (one of gpu-13 gpu-21 gpu-29 gpu-37 gpu-5 gpu-45) because no progress for 51.0 s after step 350; ...; one of gpu-13, gpu-21, gpu-29, gpu-37, gpu-5, gpu-45 blocks the others
   0.5 < eviction gpu-45 (one of gpu-13 gpu-21 gpu-29 gpu-37 gpu-5 gpu-45) because no progress for 51.0 s after step 350; ...; one of gpu-13, gpu-21, gpu-29, gpu-37, gpu-5, gpu-45 blocks the others
   0.5 < generation_started [gpu-0 gpu-1 gpu-2 gpu-3 gpu-4 gpu-48 gpu-6 gpu-7 gpu-8 gpu-9 gpu-10 gpu-11 gpu-12 gpu-49 gpu-14 gpu-15 gpu-16 gpu-17 gpu-18 gpu-19 gpu-20 gpu-50 gpu-22 gpu-23 gpu-24 gpu-25 gpu-26 gpu-27 gpu-28 gpu-51 gpu-30 gpu-31 gpu-32 gpu-33 gpu-34 gpu-35 gpu-36 gpu-52 gpu-38 gpu-39 gpu-40 gpu-41 gpu-42 gpu-43 gpu-44 gpu-53 gpu-46 gpu-47] because gpu-13, gpu-21, gpu-29, gpu-37, gpu-5, gpu-45 left the job: no progress for 51.0 s after step 350; ...; one of gpu-13, gpu-21, gpu-29, gpu-37, gpu-5, gpu-45 blocks the others
   0.5 < job_submitted because asked by the controller: gpu-13, gpu-21, gpu-29, gpu-37, gpu-5, gpu-45 left train-1 because one of them is at fault
   0.5 < nodes_requested [6] only gpu-13 gpu-21 gpu-29 gpu-37 gpu-5 gpu-45 because the tests need the nodes
   0.5 < nodes_granted to retest-25185fbaa5a5: gpu-5@2 gpu-13@2 gpu-21@2 gpu-29@2 gpu-37@2 gpu-45@2
   0.5 < generation_started [gpu-5 gpu-13 gpu-21 gpu-29 gpu-37 gpu-45] because gpu-5, gpu-13, gpu-21, gpu-29, gpu-37, gpu-45 joined; all 6 nodes are present
  29.9 < incident_closed [recovered] because step 351 completed, past step 350 at which the job had failed
  44.4 < job_finished [completed] because every rank exited with code 0
  44.4 < suspects_tested because gpu-21 is at fault: gemm failed: differs (defective_cores); gpu-29 is at fault: gemm failed: differs (defective_cores); may come back: gpu-13, gpu-37, gpu-5, gpu-45; tests found no fault on 4 of 6 evicted nodes, which were out for 44 s; the pool lacked 176 node-seconds
  44.4 < eviction_revoked gpu-13 because it passed the tests that followed its eviction (retest-25185fbaa5a5)
  44.4 < eviction_revoked gpu-37 because it passed the tests that followed its eviction (retest-25185fbaa5a5)
  44.4 < eviction_revoked gpu-5 because it passed the tests that followed its eviction (retest-25185fbaa5a5)
  44.4 < eviction_revoked gpu-45 because it passed the tests that followed its eviction (retest-25185fbaa5a5)
= gpu-13: standby
= gpu-21: evicted
= gpu-29: evicted
= gpu-37: standby
= gpu-5: standby
= gpu-45: standby
