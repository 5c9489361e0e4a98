"""Processes that talk: the responder and the requester, their configuration, output, control."""
