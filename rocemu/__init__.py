"""rocemu: an RDMA NIC in software that speaks RoCEv2 on UDP 4791."""

__version__ = "0.1.0"
