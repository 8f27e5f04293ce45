"""`scripts/live`: verify cloudgpu against a live AWS account, and record what AWS answers."""
