-- Holdfast's roles connect to its own database, which `holdfast migrate` closes to all others.
revoke connect on database postgres, template1 from public;
